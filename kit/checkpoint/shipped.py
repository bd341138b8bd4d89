"""The checkpoints that ship with the kit: the default, and the one with recorded numbers."""

from __future__ import annotations

from pathlib import Path

DEFAULT_CHECKPOINT = Path(__file__).parent / "hunyuan_image3_tiny"
"""What runs when no model is named: trained by us on scenes of simple objects."""

GOLDEN_CHECKPOINT = Path(__file__).parent / "golden"
"""Random weights, on which the official implementation's numbers were recorded."""

DEFAULT_CHECKPOINT_NOTE = (
    "hunyuan_image3_tiny, the shipped checkpoint, draws scenes of simple objects only, such as "
    '"A red ceramic vase on a wooden table"; name a checkpoint folder for anything else'
)
