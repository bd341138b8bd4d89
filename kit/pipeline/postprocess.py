"""From the decoder's output to 8-bit pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor


def to_pixels(decoded: Tensor) -> npt.NDArray[np.uint8]:
    """Turn float [1, 3, H, W] in about [-1, 1] into uint8 [H, W, 3], RGB."""
    scaled = (decoded[0].float() / 2 + 0.5).clamp(0, 1) * 255
    pixels: npt.NDArray[np.uint8] = scaled.round().byte().permute(1, 2, 0).cpu().numpy()
    return np.ascontiguousarray(pixels)
