"""The colours of the drawn world, with the distance between two of them that an eye would give."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rgb = tuple[int, int, int]

Floats = NDArray[np.floating[Any]]
"""float32 in fact; numpy's types cannot follow that through arithmetic."""

COLOURS: dict[str, Rgb] = {
    "red": (214, 38, 42),
    "orange": (246, 134, 30),
    "yellow": (252, 216, 52),
    "green": (44, 158, 68),
    "turquoise": (38, 192, 184),
    "blue": (38, 86, 208),
    "purple": (142, 58, 164),
    "pink": (246, 138, 186),
    "brown": (122, 72, 38),
    "black": (32, 32, 36),
    "white": (246, 246, 246),
    "grey": (134, 138, 144),
}
"""sRGB of each colour that an object can have."""

_CREAM, _BARK, _STALK, _STAMEN = (250, 236, 208), (72, 46, 32), (34, 108, 60), (254, 226, 110)


class Paint(NamedTuple):
    """What one object is painted with: its colour, two neighbours of it, and details."""

    body: Rgb
    shade: Rgb
    """The darker neighbour; for black the lighter one."""
    tint: Rgb
    """The lighter neighbour; for white the darker one."""
    dark: Rgb
    """Tyres, eyes, handles: far from the body."""
    light: Rgb
    """Windows, dots, buttons: far from the body."""
    bark: Rgb = _BARK
    stalk: Rgb = _STALK
    cream: Rgb = _CREAM
    stamen: Rgb = _STAMEN


def paint(colour: str, *, on_dark: bool = False) -> Paint:
    """Return the paint of one of COLOURS; dark details are light ones on a dark ground."""
    body = COLOURS[colour]
    shade, tint = _mix(body, (0, 0, 0), 0.24), _mix(body, (255, 255, 255), 0.24)
    dark, light = (46, 44, 50), (236, 244, 250)
    stamen = _STAMEN
    if colour == "black":
        shade, tint, dark = (60, 60, 66), (50, 50, 56), (126, 128, 136)
    if colour == "white":
        shade, tint, light = (212, 214, 220), (228, 230, 234), (150, 186, 214)
    if colour in ("yellow", "white"):
        stamen = (232, 150, 40)
    if on_dark:
        dark = (206, 208, 214) if colour == "grey" else (126, 128, 136)
    cream = (222, 206, 176) if colour == "white" else _CREAM
    bark = (50, 32, 24) if colour == "brown" else _BARK
    stalk = (20, 84, 44) if colour == "green" else _STALK
    return Paint(body, shade, tint, dark, light, bark, stalk, cream, stamen)


def lab(rgb: ArrayLike) -> Floats:
    """Turn 8-bit sRGB [..., 3] into CIE L*a*b*, float32 of the same shape (white point D65).

    Euclidean distance there is CIE 1976 ΔE: 2 is just visible, 100 is black against white.
    """
    xyz = _LINEAR[np.asarray(rgb, dtype=np.uint8)] @ _RGB_TO_XYZ
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


# sRGB to linear light (IEC 61966-2-1).
_CHANNEL = np.arange(256, dtype=np.float32) / 255
_LINEAR = np.where(
    _CHANNEL > 0.04045, ((_CHANNEL + 0.055) / 1.055) ** 2.4, _CHANNEL / 12.92
).astype(np.float32)

# Linear sRGB to XYZ, divided by the white point; transposed for row vectors.
_RGB_TO_XYZ = (
    np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]],
        dtype=np.float32,
    )
    / np.array([[0.9505], [1.0], [1.089]], dtype=np.float32)
).T


def _mix(a: Rgb, b: Rgb, share: float) -> Rgb:
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue
