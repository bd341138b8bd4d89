"""`kit doctor`: healthy on the shipped checkpoint, and each check sees its own fault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kit.cli import main
from kit.config.deploy import KVMode
from kit.doctor.golden import SHIPPED_CASE, compare
from kit.doctor.report import run_doctor
from kit.doctor.segments import check_segments
from kit.modelspec.config import load_model_config


def test_the_shipped_checkpoint_is_healthy(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert main(["doctor", "--model", str(checkpoint), "-o", str(path)]) == 0
    assert "healthy" in capsys.readouterr().out
    report = json.loads(path.read_text())
    checks = {check["name"]: check for check in report["checks"]}
    assert set(checks) == {"tensors", "tokenizer", "room", "golden case", "attention"}
    assert checks["tokenizer"]["data"]["reference_refusal"] is None
    for mode in ("dense_legacy", "paged_scheduler"):
        steps = checks["golden case"]["data"][mode]["steps"]
        assert len(steps) == 4
        assert all(0 < step["prediction"] < 1e-4 for step in steps)
    assert report["environment"]["torch"]["version"] == torch.__version__


def test_a_wrong_shape_and_a_foreign_tokenizer_are_found(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    shard = folder / index["model.wte.weight"]
    tensors = load_file(shard)
    tensors["model.wte.weight"] = tensors["model.wte.weight"][:-1].clone()
    save_file(tensors, shard)
    config = json.loads((folder / "config.json").read_text()) | {"im_start_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    report = run_doctor(folder)
    failed = {check.name: check.detail for check in report.checks if check.status == "failed"}
    assert not report.healthy
    assert "model.wte.weight" in failed["tensors"]
    assert "im_start_id" in failed["tokenizer"]
    assert "golden case" not in failed  # the machine is fine, only this checkpoint is not


def test_a_wrong_number_in_any_step_fails_the_golden_case() -> None:
    wanted = load_file(SHIPPED_CASE.with_suffix(".safetensors"))
    assert compare("case", wanted, wanted).passed
    for key in ("step1.pred", "step3.latents_out", "step4.pred"):
        for fault in (2e-4, float("nan")):
            seen = {name: tensor.clone() for name, tensor in wanted.items()}
            seen[key].view(-1)[7] += fault
            assert not compare("case", seen, wanted).passed
    seen = {name: tensor.clone() for name, tensor in wanted.items()}
    seen["input_ids"][0, 5] += 1
    assert not compare("case", seen, wanted).passed


@pytest.mark.parametrize("page_size", [None, 1, 32, 100])
def test_segments_agree_with_the_oracle(checkpoint: Path, page_size: int | None) -> None:
    model = load_model_config(checkpoint)
    mode: KVMode = "dense_legacy" if page_size is None else "paged_scheduler"
    errors = check_segments(model, mode, page_size, device="cpu", dtype=torch.float32)
    assert [(e.step, e.causal) for e in errors] == [
        ("first", True),
        ("first", False),  # of a reference image
        ("first", True),
        ("first", False),
        ("later", True),
        ("later", False),
    ]
    assert all(e.relative_error < 1e-5 for e in errors)
