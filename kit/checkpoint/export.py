"""Writes trained weights as a checkpoint folder of the official format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kit.checkpoint.state import split_by_bytes
from kit.model.loader import official_views
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import load_model_config
from kit.modelspec.files import INDEX_NAME, CheckpointFiles
from kit.modelspec.tensors import check_tensors

MAX_SHARD_BYTES = 15 << 20

_ROUTER_SUFFIX = ".gate.wg.weight"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as the official files are written: indented, one value a line."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def denoiser_tensors(model: HunyuanImage3) -> dict[str, Tensor]:
    """Return the stored tensors of a denoiser by official name: bfloat16, routers float32."""
    return export_dtypes({name: view.detach() for name, view in official_views(model)})


def export_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], small_files: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the folder anew: `small_files` maps names to their JSON content, tokenizer.json too.

    The result is checked as a checkpoint is when it is loaded: raises CheckpointError if a tensor
    is missing, unexpected or of another shape than config.json says.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, content in small_files.items():
        write_json(folder / name, content)
    ordered = {name: tensors[name] for name in sorted(tensors)}
    shards = list(split_by_bytes(ordered, MAX_SHARD_BYTES))
    weight_map: dict[str, str] = {}
    for at, shard in enumerate(shards, start=1):
        name = f"model-{at:04d}-of-{len(shards):04d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        (folder / name).chmod(0o644)  # the library makes it readable for the owner only
        weight_map |= dict.fromkeys(shard, name)
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / INDEX_NAME, index)
    check_tensors(CheckpointFiles.open(folder), load_model_config(folder))


def export_dtypes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round all of them to bfloat16, but the routers'."""
    return {
        name: tensor if name.endswith(_ROUTER_SUFFIX) else tensor.bfloat16()
        for name, tensor in tensors.items()
    }


def bfloat16_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round all of them."""
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
