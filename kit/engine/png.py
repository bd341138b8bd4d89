"""An image as PNG bytes."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image


def encode_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Encode uint8 [H, W, 3] RGB; the same pixels always give the same bytes."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()
