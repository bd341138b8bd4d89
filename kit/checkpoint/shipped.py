"""The checkpoint that ships with the kit: what runs when no model is named."""

from __future__ import annotations

from pathlib import Path

DEFAULT_CHECKPOINT = Path(__file__).parent / "golden"

DEFAULT_CHECKPOINT_NOTE = (
    "the shipped checkpoint has random weights: it shows the official format and the whole path, "
    "its pictures are coloured noise whatever the prompt; name a checkpoint folder to draw"
)
