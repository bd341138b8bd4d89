"""The benchmark that `kit doctor` names for NPUs: its own code, on the CPU's kernels.

No NPU was measured. What runs here is a small model on the CPU, through the workload's loops.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from record_samples import ENVIRONMENT

from bench.cuda_model import random_model
from bench.registry import Context, Registry
from bench.workloads.npu_step import ERROR_LIMIT, Seen, measure, record, run
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.doctor.npu import BENCHMARK
from kit.errors import UnsupportedError
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import load_model_config

REPEATS = 8
CONTEXT = Context("npu_step", ("python", "-m", "bench", "run", "npu_step"), ENVIRONMENT, REPEATS)


@pytest.fixture(scope="module")
def model() -> HunyuanImage3:
    config = replace(load_model_config(DEFAULT_CHECKPOINT), num_hidden_layers=1)
    return random_model(config, torch.device("cpu"))


@pytest.fixture(scope="module")
def seen(model: HunyuanImage3) -> Seen:
    with torch.inference_mode():
        return measure(model, (20, 130), (4, 4), REPEATS, lambda: None)


def test_doctor_names_it() -> None:
    assert BENCHMARK == "python -m bench run npu_step"
    assert "npu_step" in Registry().names()


def test_a_record_holds_both_sides(model: HunyuanImage3, seen: Seen) -> None:
    made = record(CONTEXT, model, seen)
    assert made.status == "ok"
    assert made.baseline is not None
    assert [len(side.rows) for side in (made.baseline, made.candidate) if side] == [REPEATS] * 2
    assert set(made.summary) == {"step_20", "step_130"}
    # On the CPU both modes agree bit for bit.
    assert made.equality is not None
    assert made.equality.seen == 0
    assert all(row["step_20_s"] > 0 for row in made.baseline.rows)  # type: ignore[operator]


def test_two_modes_that_compute_something_else_are_not_compared(
    model: HunyuanImage3, seen: Seen
) -> None:
    made = record(CONTEXT, model, replace(seen, error=2 * ERROR_LIMIT))
    assert made.status == "failed"
    assert not made.summary


def test_a_machine_without_an_npu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="needs an Ascend NPU"):
        run(CONTEXT)
