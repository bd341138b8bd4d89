"""50 ranks killed at random steps: every request is answered, no page or process is left."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import psutil

from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.api import GenerationRequest, ImageEngine, SamplingParams, StepEvent, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.errors import WorkerError

NUM_KILLS = 50
NUM_RANKS, NUM_STEPS = 4, 4
SEED = 9
PATIENCE_S = 180
STAGE = {
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
    "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": 2},
}
REQUEST = GenerationRequest(
    "a red vase on a table", SamplingParams(num_inference_steps=NUM_STEPS, seed=1)
)


def run(context: Context) -> Record:
    """Kill any of four ranks of two groups while a request runs, 50 times, then close."""
    return measure(context, NUM_KILLS)


def measure(context: Context, num_kills: int) -> Record:
    """Do it so often."""
    draw = random.Random(SEED)
    wrong = {"pictures": 0, "pages": 0, "processes": 0}
    before = set(psutil.Process().children(recursive=True))
    engine = ImageEngine(
        DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": STAGE})
    )
    with engine:
        expected = engine.generate(REQUEST).image
        undisturbed = [_seconds(engine, None)[0] for _ in range(context.repeats)]
        killed, restarts = [], []
        for _ in range(num_kills):
            seconds, image = _seconds(engine, _killer(draw))
            ready = time.perf_counter()
            _wait_until_ready(engine)
            restarts.append(time.perf_counter() - ready)
            killed.append(seconds)
            following = engine.generate(REQUEST).image
            wrong["pictures"] += sum(
                not np.array_equal(one, expected) for one in (image, following)
            )
            wrong["pages"] += engine.status().pages.used
        num_restarts = sum(group.num_restarts for group in engine.status().groups)
    wrong["processes"] = len(set(psutil.Process().children(recursive=True)) - before)
    return context.record(
        parameters={
            "kills": num_kills,
            "steps": NUM_STEPS,
            "seed": SEED,
            "topology": "2 groups of TP2",
        },
        equality=EqualityCheck.of(
            compared="pictures that differ, of requests with a kill and of those after; pages held "
            "and processes left, summed",
            limit=0,
            seen=sum(wrong.values()),
        ),
        baseline=Measurement("undisturbed", tuple({"total_s": time} for time in undisturbed)),
        candidate=Measurement(
            "with a rank killed",
            tuple(
                {"total_s": total, "ready_again_s": ready}
                for total, ready in zip(killed, restarts, strict=True)
            ),
        ),
        ratios=pair_ratios(("total_s",)),
        findings={"restarts": num_restarts, **wrong},
    )


def _killer(draw: random.Random) -> Callable[[StepEvent], None]:
    """Return an `on_step` that kills one rank of those that live, after one step."""
    step = draw.randint(1, NUM_STEPS)
    armed = [True]

    def on_step(event: StepEvent) -> None:
        if event.step == step and armed:
            armed.pop()
            draw.choice(_ranks()).send_signal(signal.SIGKILL)

    return on_step


def _ranks() -> list[psutil.Process]:
    """Return the processes of ranks that live."""
    ranks = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie has no command line any more
            if "kit.worker.process" in " ".join(child.cmdline()):
                ranks.append(child)
    return sorted(ranks, key=lambda child: child.pid)


def _seconds(
    engine: ImageEngine, on_step: Callable[[StepEvent], None] | None
) -> tuple[float, npt.NDArray[np.uint8]]:
    started = time.perf_counter()
    image = engine.generate(REQUEST, on_step).image
    return time.perf_counter() - started, image


def _wait_until_ready(engine: ImageEngine) -> None:
    """Wait until all groups are there again; a kill of an idle one may not have been seen yet."""
    deadline = time.monotonic() + PATIENCE_S
    while len(_ranks()) < NUM_RANKS or any(g.state != "ready" for g in engine.status().groups):
        if time.monotonic() > deadline:
            raise WorkerError(f"a group did not start again: {engine.status().groups}")
        time.sleep(0.05)
