"""Pictures as pixels: read from the bytes of a file, and held against one another."""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image


def decode(file: bytes) -> npt.NDArray[np.uint8]:
    """Return uint8 [H, W, 3] of a file's bytes."""
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image.convert("RGB"))


def largest_difference(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> int:
    """Return the largest difference of a channel, 0 to 255, of two pictures of one size."""
    return int(np.abs(one.astype(np.int16) - other.astype(np.int16)).max())


def psnr(seen: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8]) -> float:
    """Return dB against the range of a byte; 78 for equal pictures."""
    error = float(((seen.astype(np.float64) - wanted.astype(np.float64)) ** 2).mean())
    return 10 * math.log10(255**2 / max(error, 1e-3))
