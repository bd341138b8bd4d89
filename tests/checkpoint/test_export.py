"""What an export refuses, and how its files are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.checkpoint.export import denoiser_tensors, export_checkpoint
from kit.errors import CheckpointError
from kit.model.transformer import HunyuanImage3


def test_an_incomplete_export_is_refused(
    tmp_path: Path, toy_folder: Path, random_model: HunyuanImage3
) -> None:
    small = {"config.json": json.loads((toy_folder / "config.json").read_text())}
    with pytest.raises(CheckpointError, match=r"vae\.decoder\.\S+ is missing"):
        export_checkpoint(tmp_path / "out", denoiser_tensors(random_model), small)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    (shard,) = set(index["weight_map"].values())
    assert shard == "model-0001-of-0001.safetensors"
    assert (tmp_path / "out" / shard).stat().st_mode & 0o777 == 0o644
    assert index["metadata"]["total_size"] < (tmp_path / "out" / shard).stat().st_size
