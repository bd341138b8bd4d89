"""The checkpoints that ship with the kit: the default, and the one with recorded numbers."""

from __future__ import annotations

from pathlib import Path

DEFAULT_CHECKPOINT = Path(__file__).parent / "hunyuan_image3_tiny"
"""What runs when no model is named: trained by us on scenes of simple objects."""

DEFAULT_FINGERPRINT = "a09fe2066ad00bcc992ba1ec32db78148cce50e7b222e280a2a4607b7d06d8c8"
"""What kit.modelspec.fingerprint says of it, and so the records of its pictures and its servers."""

GOLDEN_CHECKPOINT = Path(__file__).parent / "golden"
"""Random weights, on which the official implementation's numbers were recorded."""

DEFAULT_CHECKPOINT_NOTE = (
    "hunyuan_image3_tiny, the shipped checkpoint, draws and edits scenes of simple objects only, "
    'such as "A red ceramic vase on a wooden table"; name a checkpoint folder for anything else'
)
