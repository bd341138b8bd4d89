"""Training in pieces, with a clock that counts steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kit.checkpoint.loop import Budget, Log, run_piece
from kit.checkpoint.schedule import Schedule
from kit.checkpoint.state import StateFolder
from kit.errors import EngineError


class Clock:
    """Advances when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Counter:
    """A trainee whose weight is the number of its steps; a step takes a second."""

    schedule = Schedule(num_warmup_steps=1, flat_share=0.5, final_scale=0.0)

    def __init__(self, clock: Clock, bad_step: int = -1) -> None:
        self.weight = torch.zeros(1)
        self.scales: list[float] = []
        self._clock, self._bad_step = clock, bad_step

    def step(self, lr_scale: float) -> dict[str, Tensor]:
        self._clock.now += 1
        self.weight += 1
        self.scales.append(lr_scale)
        bad = float(self.weight) == self._bad_step
        return {"loss": torch.tensor(float("nan") if bad else 0.5)}

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.weight.copy_(tensors["weight"])


def test_a_budget_is_trained_in_pieces(tmp_path: Path) -> None:
    state, log = StateFolder(tmp_path), Log(tmp_path / "log.jsonl")
    results, scales = [], []
    for _ in range(3):
        clock = Clock()
        trainee = Counter(clock)
        budget = Budget(total_s=10, piece_s=4, log_every=1, clock=clock)
        results.append(run_piece("dit", trainee, state, log, budget))
        scales += trainee.scales
    assert results == [False, False, True]
    tensors, note = state.load("dit", made_by="dit")
    assert float(tensors["weight"]) == note["step"] == 10
    assert note["elapsed_s"] == 10
    assert scales[:6] == [1.0] * 6
    assert scales[6:] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == list(range(1, 11))
    assert {entry["stage"] for entry in entries} == {"dit"}


def test_a_finished_budget_takes_no_further_step(tmp_path: Path) -> None:
    state, log = StateFolder(tmp_path), Log(tmp_path / "log.jsonl")
    for _ in range(2):
        clock = Clock()
        trainee = Counter(clock)
        assert run_piece("vae", trainee, state, log, Budget(3, 3, clock=clock))
    assert trainee.scales == []
    assert float(trainee.weight) == 3


def test_the_state_is_saved_while_it_runs(tmp_path: Path) -> None:
    clock = Clock()
    trainee = Counter(clock, bad_step=8)
    state, log = StateFolder(tmp_path), Log(tmp_path / "log.jsonl")
    budget = Budget(20, 20, log_every=1, save_every_s=4.5, clock=clock)
    with pytest.raises(EngineError, match="not finite any more at step 8"):
        run_piece("dit", trainee, state, log, budget)
    assert state.load("dit", made_by="dit")[1] == {"step": 5, "elapsed_s": 5.0}
