"""Where the reference implementation's recorded runs are, and how a test reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.request import ReferenceImage

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


REFERENCE_CASE_NAMES = ("ti2i_ref1_landscape", "ti2i_ref2_square")
"""With reference images; their masks are kept as a hash."""


@dataclass(frozen=True)
class GoldenCase:
    """One recorded run of the official implementation."""

    name: str
    inputs: dict[str, Any]
    tensors_path: Path


def case_images(inputs: dict[str, Any]) -> tuple[ReferenceImage, ...]:
    """Read the reference images of a case, for the checkpoint that it was recorded on."""
    names = inputs.get("reference_images", ())
    if not names:
        return ()
    from kit.api import load_config
    from kit.checkpoint.shipped import GOLDEN_CHECKPOINT
    from kit.engine.preprocess import Preprocessor

    preprocessor = Preprocessor(GOLDEN_CHECKPOINT, load_config(GOLDEN_CHECKPOINT))
    images = []
    for name in names:
        with (GOLDEN / name).open("rb") as file:
            images.append(preprocessor.read_image(file, name))
    return tuple(images)


def load_case(name: str) -> GoldenCase:
    """Find a case in tests/golden or among those that ship with `kit doctor`."""
    for folder in (GOLDEN, PACKAGE / "doctor" / "golden"):
        path = folder / f"case_{name}.json"
        if path.exists():
            return GoldenCase(name, json.loads(path.read_text()), path.with_suffix(".safetensors"))
    raise FileNotFoundError(name)
