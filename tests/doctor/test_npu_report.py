"""Tier D's command on a stand-in: what `kit doctor` finds on an NPU. Nothing here ran on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fia_emulation
import npu_machine
import pytest
import torch
from torch import Tensor

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.doctor.npu import (
    OPERATOR_LIMIT,
    PUBLISHED_HEADS,
    NpuReport,
    examine_npu,
    operator_errors,
)
from kit.doctor.report import _NPU_CHECKS, run_doctor
from kit.modelspec.config import load_model_config

CPU = torch.device("cpu")


def plant(monkeypatch: pytest.MonkeyPatch, name: str, fault: Any) -> None:
    right = getattr(fia_emulation.installed(), name)
    monkeypatch.setattr(fia_emulation.installed(), name, lambda *a, **k: fault(right, *a, **k))


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npu_machine.install(tmp_path, monkeypatch)


def test_a_right_device_passes_at_the_heads_of_the_model() -> None:
    model = load_model_config(DEFAULT_CHECKPOINT)
    report = examine_npu(model, CPU)
    assert report.passed
    assert report.forms == {"TND": None, "BSH": None}
    assert report.heads[2] == model.attention_head_dim == 64
    assert all(0 < error < 5e-3 for error in report.operators.values())


@pytest.mark.long
def test_heads_that_it_does_not_take_are_replaced_by_the_published_ones(checkpoint: Path) -> None:
    assert examine_npu(load_model_config(checkpoint), CPU).heads == PUBLISHED_HEADS


def test_one_good_form_is_enough_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_rows(right: Any, *tensors: Tensor, **given: Any) -> Any:
        if given["input_layout"] == "TND":
            raise RuntimeError("error code is 561002")
        return right(*tensors, **given)

    model = load_model_config(DEFAULT_CHECKPOINT)
    plant(monkeypatch, "npu_fused_infer_attention_score", only_rows)
    report = examine_npu(model, CPU)
    assert report.passed
    assert report.forms == {"TND": "refused (error code is 561002)", "BSH": None}
    plant(
        monkeypatch,
        "npu_fused_infer_attention_score",
        lambda right, *tensors, **given: right(*tensors, **given | {"scale": 1.0}),
    )
    report = examine_npu(model, CPU)
    assert not report.passed
    assert "segments are wrong" in str(report.forms["BSH"])


def swapped(right: Any, x: Tensor) -> Any:
    return right(x.roll(512, dims=-1))


def larger(right: Any, x: Tensor, gamma: Tensor, epsilon: float) -> Any:
    return right(x, gamma * 1.02, epsilon)


def lost(right: Any, x: Tensor, gamma: Tensor, epsilon: float) -> Any:
    return right(x * torch.nan, gamma, epsilon)


@pytest.mark.parametrize(
    ("name", "fault"), [("swiglu", swapped), ("rms_norm", larger), ("rms_norm", lost)]
)
def test_a_wrong_operator_of_the_model_fails(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Any
) -> None:
    plant(monkeypatch, f"npu_{name}", fault)
    errors = operator_errors(CPU)
    wrong = [name for name, error in errors.items() if not error <= OPERATOR_LIMIT]
    assert wrong == [name]
    assert not NpuReport("", PUBLISHED_HEADS, {"TND": None}, errors).passed


def test_the_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's one untruth: its device is the CPU."""
    monkeypatch.setattr(torch, "device", lambda *_: CPU)
    check = _NPU_CHECKS["npu"](DEFAULT_CHECKPOINT)
    assert check.status == "ok"
    assert "60.00 of 64.00 GiB free" in check.detail
    assert "TND passed, BSH passed; rms_norm off by" in check.detail
    assert check.data["version"] == "torch-npu 0+emulated"


@pytest.mark.long
def test_doctor_asks_where_the_driver_lists_one() -> None:
    """This torch has no device called npu, so the check fails with the device's own words."""
    check = {check.name: check for check in run_doctor(DEFAULT_CHECKPOINT).checks}["npu"]
    assert check.status == "failed"
    assert "refused:" in check.detail
