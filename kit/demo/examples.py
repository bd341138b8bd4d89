"""What a form's examples ask for: what hunyuan_image3_tiny was trained for."""

from __future__ import annotations

import io

from PIL import Image

from kit.checkpoint.render import render
from kit.checkpoint.scenes import Scene, SceneObject

PROMPTS = (
    "A red ceramic vase on a wooden table",
    "a yellow moon at night",
    "two orange fish in the sea",
    "a blue cup to the left of a green apple",
)

EDIT_PROMPT = "make the vase blue"
SOURCE_NAME = "red-vase.png"

_VASE = SceneObject("vase", "red", "ceramic", "large", side=152, x=128, y=140)
_SOURCE = Scene(256, 256, "table", shift=0, objects=(_VASE,))


def draw_source() -> bytes:
    """Return the PNG that EDIT_PROMPT is an edit of."""
    file = io.BytesIO()
    Image.fromarray(render(_SOURCE)).save(file, "PNG")
    return file.getvalue()
