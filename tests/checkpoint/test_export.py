"""What an export refuses, and how its files are."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from kit.api import GenerationRequest, SamplingParams, load_config
from kit.checkpoint.export import denoiser_tensors, export_checkpoint
from kit.checkpoint.official_config import generation_config, model_config
from kit.checkpoint.preset import TINY
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.engine.preprocess import Preprocessor
from kit.errors import CheckpointError
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import load_model_config, parse_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import expected_tensors


def test_the_shipped_shape_with_a_vision_tower_stays_small(tmp_path: Path) -> None:
    """At most 28 MB in all, no file above 16 MiB; and references are then taken."""
    names = ("tokenizer.json", "tokenizer_config.json")
    small = {name: json.loads((DEFAULT_CHECKPOINT / name).read_text()) for name in names}
    ids = {entry["content"]: entry["id"] for entry in small["tokenizer.json"]["added_tokens"]}
    shipped = CheckpointFiles.open(DEFAULT_CHECKPOINT)
    raw = model_config(TINY, ids, load_model_config(DEFAULT_CHECKPOINT).vae.scaling_factor)
    small["config.json"] = raw
    small["generation_config.json"] = generation_config(TINY, ids, takes_references=True)
    specs = expected_tensors(parse_model_config(raw))
    wanted = {name for name, spec in specs.items() if spec.part == "vision"} | set(shipped.tensors)
    tensors = {
        name: torch.zeros(
            specs[name].shape,
            dtype=torch.float32 if specs[name].part == "router" else torch.bfloat16,
        )
        for name in wanted
    }
    folder = tmp_path / "out"
    export_checkpoint(folder, tensors, small)
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert sum(sizes) <= 28_000_000
    assert max(sizes) <= 16 << 20
    assert len(sizes) == 7
    # What is new is the tower, the aligner and their names.
    added = sum(sizes) - sum(path.stat().st_size for path in DEFAULT_CHECKPOINT.iterdir())
    vision = sum(tensors[name].nbytes for name in wanted if specs[name].part == "vision")
    assert vision < added < 1.02 * vision
    preprocessor = Preprocessor(folder, load_config(folder))
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
