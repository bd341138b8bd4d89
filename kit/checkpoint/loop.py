"""Runs a training stage for a piece of its time budget."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from tqdm import tqdm

from kit.checkpoint.schedule import Schedule
from kit.checkpoint.state import StateFolder
from kit.errors import EngineError
from kit.telemetry.log import get_logger

logger = get_logger("train")

Clock = Callable[[], float]


class Trainee(Protocol):
    """What is trained: parameters, data and loss together."""

    @property
    def schedule(self) -> Schedule: ...

    def step(self, lr_scale: float) -> dict[str, Tensor]:
        """Take one step; returns scalars of its losses, still on the device."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what a later piece goes on from."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` of an earlier piece returned."""
        ...


@dataclass(frozen=True)
class Budget:
    """How long a stage runs, in seconds of training, set-up not counted."""

    total_s: float
    piece_s: float
    """At most so long in this process; the next one goes on."""

    log_every: int = 50
    save_every_s: float = 120.0
    clock: Clock = time.monotonic


class Log:
    """Appends JSON lines, one object each, to a file that can be plotted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, stage: str, **values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, **values}) + "\n")


def run_piece(stage: str, trainee: Trainee, state: StateFolder, log: Log, budget: Budget) -> bool:
    """Train until the piece or the budget ends, save, return whether the budget is used up.

    Goes on from the stage's state if there is one. Raises EngineError when a loss is not finite.
    """
    step, elapsed_before = 0, 0.0
    if state.has(stage):
        tensors, note = state.load(stage, made_by=stage)
        trainee.load(tensors)
        step, elapsed_before = note["step"], note["elapsed_s"]
        logger.info("%s: going on after step %d, %.0f s", stage, step, elapsed_before)
    started = budget.clock()
    end = min(budget.total_s, elapsed_before + budget.piece_s)
    num_done, elapsed, saved_at = 0, elapsed_before, elapsed_before
    with tqdm(total=math.ceil(end), initial=int(elapsed), desc=stage, unit="s") as bar:
        while elapsed < end:
            lr_scale = trainee.schedule.scale(step=num_done, time_share=elapsed / budget.total_s)
            losses = trainee.step(lr_scale)
            step, num_done = step + 1, num_done + 1
            elapsed = elapsed_before + budget.clock() - started
            if num_done % budget.log_every == 0:
                values = _read(losses, stage, step)
                log.write(
                    stage, step=step, elapsed_s=round(elapsed, 2), lr_scale=lr_scale, **values
                )
                bar.set_postfix({"step": step, "loss": f"{values['loss']:.4f}"}, refresh=False)
                bar.update(min(int(elapsed), math.ceil(end)) - bar.n)
            if elapsed - saved_at > budget.save_every_s:
                state.save(stage, trainee.tensors(), {"step": step, "elapsed_s": elapsed})
                saved_at = elapsed
    state.save(stage, trainee.tensors(), {"step": step, "elapsed_s": elapsed})
    logger.info("%s: %d steps in %.0f of %.0f s", stage, step, elapsed, budget.total_s)
    return elapsed >= budget.total_s


def _read(losses: Mapping[str, Tensor], stage: str, step: int) -> dict[str, float]:
    """Wait for the device and read the scalars."""
    values = {name: round(float(value), 6) for name, value in losses.items()}
    if not all(math.isfinite(value) for value in values.values()):
        raise EngineError(
            f"the {stage} training is not finite any more at step {step}: {values}; start again "
            f"from the saved state with another seed or a lower learning rate"
        )
    return values
