"""Draws a scene: the ground, shadows, and each object in its paint and material."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kit.checkpoint.grounds import GROUNDS, SHADOW, ground_canvas
from kit.checkpoint.palette import Floats, paint
from kit.checkpoint.scenes import Scene, SceneObject
from kit.checkpoint.shapes import silhouette

_SHADOW_BREADTH, _SHADOW_HEIGHT = 0.54, 0.07
"""Half axes of the ellipse below an object: shares of its width and of its side."""


def render(scene: Scene) -> NDArray[np.uint8]:
    """Return the picture, uint8 [height, width, 3] sRGB; the same for the same scene."""
    ground = ground_canvas(scene.background, scene.height, scene.width)
    canvas = ground[:, scene.shift : scene.shift + scene.width].copy()
    if GROUNDS[scene.background].stands:
        for one in scene.objects:
            _draw_shadow(canvas, one)
    on_dark = GROUNDS[scene.background].is_dark
    for one in scene.objects:
        _draw_object(canvas, one, on_dark=on_dark)
    return canvas


def _draw_shadow(canvas: NDArray[np.uint8], one: SceneObject) -> None:
    _, left, bottom, right = one.box
    rx, ry = (right - left) * _SHADOW_BREADTH, one.side * _SHADOW_HEIGHT
    middle_y, middle_x = bottom - ry * 0.4, (left + right) / 2
    top, left = max(0, int(middle_y - ry)), max(0, int(middle_x - rx))
    region = canvas[top : int(middle_y + ry) + 1, left : int(middle_x + rx) + 1]
    y = (np.arange(top, top + region.shape[0], dtype=np.float32) - middle_y) / ry
    x = (np.arange(left, left + region.shape[1], dtype=np.float32) - middle_x) / rx
    far = np.minimum(y[:, None] ** 2 + x[None, :] ** 2, 1)
    light = 1 - SHADOW * (1 - far * far)
    np.rint(region * light[..., None], out=region, casting="unsafe")


def _draw_object(canvas: NDArray[np.uint8], one: SceneObject, *, on_dark: bool) -> None:
    shape = silhouette(one.kind, one.side)
    num_roles, height, width = shape.coverage.shape
    colours = np.array(paint(one.colour, on_dark=on_dark), dtype=np.float32)[list(shape.roles)]
    light, gloss = _LOOKS[one.material](shape.depth)
    # [3, h, w]: colours times alpha.
    drawn = (colours.T @ shape.coverage.reshape(num_roles, -1)).reshape(3, height, width)
    drawn *= 1 + shape.body * (light - 1)
    if gloss is not None:
        drawn += (shape.body * gloss) * (255 * shape.alpha - drawn)
    top, left, bottom, right = one.box
    region = canvas[top:bottom, left:right]
    drawn += region.transpose(2, 0, 1) * (1 - shape.alpha)
    drawn += 0.5
    region[:] = np.minimum(drawn, 255, out=drawn).transpose(1, 2, 0)


# A material's look is (light, gloss), both [h, w] or broadcastable to it: what the colour is
# multiplied by, then the share of white that is mixed in, None for none.


def _matte(depth: Floats) -> tuple[Floats, None]:
    _, v = _uv(depth)
    return 1.04 - 0.12 * v, None


def _ceramic(depth: Floats) -> tuple[Floats, Floats]:
    u, v = _uv(depth)
    light = (1.06 - 0.5 * (u - 0.36) ** 2) * (1.02 - 0.1 * v) * (0.86 + 0.14 * depth)
    spot: Floats = np.exp(-(((u - 0.3) / 0.1) ** 2)) * np.exp(-(((v - 0.27) / 0.14) ** 2))
    return light, 0.85 * np.minimum(1.6 * spot, 1) * depth


def _metal(depth: Floats) -> tuple[Floats, Floats]:
    u, v = _uv(depth)
    along = u + 0.55 * v
    light: Floats = 0.89 + 0.14 * np.cos(11 * along - 3.6)
    streak = _ridge(along, 0.4, 0.13) + 0.7 * _ridge(along, 1.0, 0.1)
    return light, 0.55 * streak * (0.1 + 0.9 * depth)


def _wooden(depth: Floats) -> tuple[Floats, None]:
    u, v = _uv(depth)
    # Rings that were cut lengthwise: lines bend around a knot, every other one is stronger.
    bend = 1.6 * np.exp(-(((u - 0.6) / 0.2) ** 2)) * np.tanh(6 * (v - 0.46))
    rings = 36 * v + 1.1 * np.sin(3.6 * u + 0.4) + bend
    line = np.maximum(np.cos(rings), 0) ** 2 * (0.75 + 0.25 * np.cos(rings / 2))
    return 1.03 - 0.3 * line - 0.06 * v, None


def _glass(depth: Floats) -> tuple[Floats, Floats]:
    u, v = _uv(depth)
    along = u + 0.8 * v
    streak = _ridge(along, 0.56, 0.05) + 0.8 * _ridge(along, 0.7, 0.025)
    return 0.66 + 0.4 * depth, np.minimum(0.1 * depth + 0.7 * streak * depth, 0.8)


_LOOKS: dict[str, Callable[[Floats], tuple[Floats, Floats | None]]] = {
    "matte": _matte,
    "ceramic": _ceramic,
    "wooden": _wooden,
    "metal": _metal,
    "glass": _glass,
}


def _uv(depth: Floats) -> tuple[Floats, Floats]:
    """Return the shares of width [1, w] and of height [h, 1] at each pixel's middle."""
    height, width = depth.shape
    u = (np.arange(width, dtype=np.float32) + 0.5) / width
    v = (np.arange(height, dtype=np.float32) + 0.5) / height
    return u[None, :], v[:, None]


def _ridge(values: Floats, middle: float, half: float) -> Floats:
    """Return a bump of height 1 around `middle` that is 0 beyond `half`."""
    bump = np.clip(1 - ((values - middle) / half) ** 2, 0, 1)
    result: Floats = bump * np.minimum(1, 2 * bump)
    return result
