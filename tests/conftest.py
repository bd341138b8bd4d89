"""Fixtures shared by all tests: the golden checkpoints and the reference implementation's numbers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
PACKAGE = Path(__file__).parent.parent / "kit"

CASE_NAMES = (
    "t2i_pretrain_square",
    "t2i_pretrain_square_nocfg",
    "t2i_pretrain_square_seed7",
    "t2i_instruct_landscape",
    "t2i_instruct_cot_portrait",
    "t2i_instruct_batch2_landscape",
    "distil_square",
)


@dataclass(frozen=True)
class GoldenCase:
    """One recorded run of the official implementation."""

    name: str
    inputs: dict[str, Any]
    tensors_path: Path


def load_case(name: str) -> GoldenCase:
    """Find a case in tests/golden or among those that ship with `kit doctor`."""
    for folder in (GOLDEN, PACKAGE / "doctor" / "golden"):
        path = folder / f"case_{name}.json"
        if path.exists():
            return GoldenCase(
                name, json.loads(path.read_text()), path.with_suffix(".safetensors")
            )
    raise FileNotFoundError(name)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The random-weight checkpoint of the official format that ships with the kit."""
    return PACKAGE / "checkpoint" / "golden"


@pytest.fixture(scope="session")
def distil_checkpoint(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """The distilled golden checkpoint, completed with the VAE shard of the base one."""
    folder = tmp_path_factory.mktemp("distil") / "checkpoint"
    shutil.copytree(GOLDEN / "checkpoint_distil", folder)
    base = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for name, shard in base["weight_map"].items():
        if name.startswith("vae."):
            target = f"vae-{shard}"
            index["weight_map"][name] = target
            if not (folder / target).exists():
                shutil.copy(checkpoint / shard, folder / target)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="session")
def tables() -> dict[str, Any]:
    """Special token ids, tokenizer samples, schedules and buckets of the reference."""
    content: dict[str, Any] = json.loads((GOLDEN / "tables.json").read_text())
    return content
