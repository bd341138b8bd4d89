"""Compares two pictures pixel by pixel."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image


@dataclass(frozen=True)
class Difference:
    """How far two pictures of one size are apart."""

    num_pixels: int
    num_different: int
    largest: int
    """Largest difference of one channel, in levels of 255."""

    mean: float
    """Mean difference of all channels, in levels of 255."""

    shown: bytes | None
    """A PNG of the difference, its largest level made white; None when there is none."""


def compare(left: bytes, right: bytes) -> Difference | None:
    """Compare two files; None when their sizes differ."""
    a, b = _pixels(left), _pixels(right)
    if a.shape != b.shape:
        return None
    apart = np.abs(a.astype(np.int16) - b.astype(np.int16))
    largest = int(apart.max())
    return Difference(
        num_pixels=a.shape[0] * a.shape[1],
        num_different=int(apart.any(axis=-1).sum()),
        largest=largest,
        mean=float(apart.mean()),
        shown=_png((apart * 255 // largest).astype(np.uint8)) if largest else None,
    )


def _pixels(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
