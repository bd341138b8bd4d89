"""Tier D's command on a stand-in: what `kit doctor` finds on an NPU. Nothing here ran on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import npu_faults
import npu_machine
import pytest
import torch
from torch import Tensor

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.doctor.npu import BENCHMARK, PUBLISHED_HEADS, examine_npu
from kit.doctor.report import _NPU_CHECKS, run_doctor
from kit.modelspec.config import load_model_config

CPU = torch.device("cpu")
ATTENTION = "npu_fused_infer_attention_score"


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npu_machine.install(tmp_path, monkeypatch)


def test_a_right_device_passes_at_the_heads_of_the_model() -> None:
    model = load_model_config(DEFAULT_CHECKPOINT)
    report = examine_npu(model, CPU)
    assert report.passed
    assert report.paged == {"TND": None, "BSH": None}
    assert report.dense is None
    assert report.heads[2] == model.attention_head_dim == 64
    assert set(report.parts) == {"rotation", "norm", "gate", "expert layer"}
    for part in report.parts.values():
        assert part.relative_error is not None
        assert 0 < part.relative_error < 5e-3


@pytest.mark.long
def test_heads_that_it_does_not_take_are_replaced_by_the_published_ones(checkpoint: Path) -> None:
    assert examine_npu(load_model_config(checkpoint), CPU).heads == PUBLISHED_HEADS


def test_one_good_form_is_enough_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_rows(right: Any, *tensors: Tensor, **given: Any) -> Any:
        if given["input_layout"] == "TND":
            raise RuntimeError("error code is 561002")
        return right(*tensors, **given)

    model = load_model_config(DEFAULT_CHECKPOINT)
    npu_faults.plant(monkeypatch, ATTENTION, only_rows)
    report = examine_npu(model, CPU)
    assert report.passed
    assert report.paged == {"TND": "refused (error code is 561002)", "BSH": None}

    def unscaled(right: Any, *tensors: Tensor, **given: Any) -> Any:
        return right(*tensors, **given | {"scale": 1.0})

    npu_faults.plant(monkeypatch, ATTENTION, unscaled)
    report = examine_npu(model, CPU)
    assert not report.passed
    assert "segments are wrong" in str(report.paged["BSH"])
    assert "segments are wrong" in str(report.dense)


def test_rows_that_cannot_be_read_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_pages(right: Any, *tensors: Tensor, **given: Any) -> Any:
        if "block_table" not in given:
            raise RuntimeError("error code is 561002")
        return right(*tensors, **given)

    npu_faults.plant(monkeypatch, ATTENTION, only_pages)
    report = examine_npu(load_model_config(DEFAULT_CHECKPOINT), CPU)
    assert report.paged == {"TND": None, "BSH": None}
    assert not report.passed
    assert "contiguous rows refused" in report.as_text()


@pytest.mark.parametrize(
    ("part", "name", "fault"),
    [
        ("gate", "npu_swiglu", npu_faults.gate_second),
        pytest.param("norm", "npu_rms_norm", npu_faults.larger, marks=pytest.mark.long),
        pytest.param("norm", "npu_rms_norm", npu_faults.lost, marks=pytest.mark.long),
        pytest.param(
            "expert layer", "npu_grouped_matmul", npu_faults.first_matrix, marks=pytest.mark.long
        ),
        ("rotation", "npu_rotary_mul", None),
    ],
)
def test_a_part_that_does_not_pass_fails(
    part: str, name: str, fault: npu_faults.Fault | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    npu_faults.plant(monkeypatch, name, fault)
    report = examine_npu(load_model_config(DEFAULT_CHECKPOINT), CPU)
    assert part in [name for name, tried in report.parts.items() if tried.problem]
    assert not report.passed
    assert report.paged["TND"] is None


def test_the_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's one untruth: its device is the CPU."""
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.setattr(torch, "device", lambda *_: CPU)
    check = _NPU_CHECKS["npu"](DEFAULT_CHECKPOINT)
    assert check.status == "ok"
    assert "60.00 of 64.00 GiB free" in check.detail
    assert "pages TND passed, pages BSH passed, contiguous rows passed" in check.detail
    assert "expert layer off by" in check.detail
    assert "CANN of unknown version" in check.detail
    assert BENCHMARK in check.detail
    assert check.data["version"].startswith("torch-npu ")


@pytest.mark.long
def test_doctor_asks_where_the_driver_lists_one() -> None:
    """This torch has no device called npu, so the check fails with the device's own words."""
    check = {check.name: check for check in run_doctor(DEFAULT_CHECKPOINT).checks}["npu"]
    assert check.status == "failed"
    assert "refused:" in check.detail
