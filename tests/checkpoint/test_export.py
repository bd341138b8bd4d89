"""What an export refuses, and how its files are."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from kit.api import GenerationRequest, SamplingParams, load_config
from kit.checkpoint.export import denoiser_tensors, export_checkpoint
from kit.checkpoint.preset import TINY
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.engine.preprocess import Preprocessor
from kit.errors import CheckpointError
from kit.model.transformer import HunyuanImage3


def test_the_shipped_checkpoint_edits_every_size() -> None:
    preprocessor = Preprocessor(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT))
    assert preprocessor.reference_refusal is None
    for size in preprocessor.sizes:
        prompt = "Could you please replace the thing on the left with a large chocolate rocket!"
        request = GenerationRequest(prompt, SamplingParams(height=size.height, width=size.width))
        preprocessor.prepare(request)
        picture = io.BytesIO()
        Image.new("RGB", (size.width, size.height)).save(picture, "PNG")
        image = preprocessor.read_image(picture, "image")
        rows = preprocessor.prepare(replace(request, images=(image,))).rows
        assert rows.layout.kv_len <= TINY.shape.edit_slots


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
