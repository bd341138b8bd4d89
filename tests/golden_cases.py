"""Where the reference implementation's recorded runs are, and how a test reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
            return GoldenCase(name, json.loads(path.read_text()), path.with_suffix(".safetensors"))
    raise FileNotFoundError(name)
