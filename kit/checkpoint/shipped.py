"""The checkpoints that ship with the kit: the default, and the one with recorded numbers."""

from __future__ import annotations

from pathlib import Path

DEFAULT_CHECKPOINT = Path(__file__).parent / "hunyuan_image3_tiny"
"""What runs when no model is named: trained by us on scenes of simple objects."""

DEFAULT_FINGERPRINT = "212f40a6ecb965edaf19124e9376b877b637a4d2aea1dfdbf71f087da6b9560f"
"""What kit.modelspec.fingerprint says of it, and so the records of its pictures and its servers."""

GOLDEN_CHECKPOINT = Path(__file__).parent / "golden"
"""Random weights, on which the official implementation's numbers were recorded."""

DEFAULT_CHECKPOINT_NOTE = (
    "hunyuan_image3_tiny, the shipped checkpoint, draws and edits scenes of simple objects only, "
    'such as "A red ceramic vase on a wooden table"; name a checkpoint folder for anything else'
)
