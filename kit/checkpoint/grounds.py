"""The backgrounds of the drawn world.

Textures are smooth and of low contrast: a small VAE cannot keep fine grain. A ground with a horizon
has a surface below it that objects stand on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kit.checkpoint.palette import COLOURS, Floats, Rgb, lab

HORIZON = 0.4
"""Where the surface of a standing ground begins, as a share of the canvas height."""

NUM_SHIFTS = 64
"""Textures differ between pictures by a shift of 0 to 63 pixels to the left."""

MIN_CONTRAST = 26.0
"""ΔE that an object's colour keeps from every colour of its ground."""

SHADOW = 0.22
"""Share of light that an object on a surface takes away below itself."""

_DARK_LIGHTNESS = 30.0

Band = tuple[Rgb, Rgb]
"""Two colours; the pixels of a zone lie near the line between them."""


@dataclass(frozen=True)
class Ground:
    """One background."""

    upper: Band
    """The whole canvas, or what lies above the horizon."""
    surface: Band | None = None
    """What lies below the horizon; None: the ground has none."""
    texture: Callable[[Floats, Floats], tuple[Floats, Floats]] | None = None
    """From pixel coordinates (x, y) in shares of the shorter side, y from the zone's top, to (place
    on the band of the textured zone, light to multiply by). None: a smooth fall from top to bottom.
    """

    @property
    def bands(self) -> tuple[Band, ...]:
        return (self.upper,) if self.surface is None else (self.upper, self.surface)

    @property
    def is_dark(self) -> bool:
        """Whether dark details cannot be seen on it."""
        return bool(lab(self.bands).max(axis=(0, 1))[0] < _DARK_LIGHTNESS)

    @property
    def stands(self) -> bool:
        """Whether objects stand on a surface."""
        return self.surface is not None


@cache
def ground_canvas(background: str, height: int, width: int) -> NDArray[np.uint8]:
    """Paint [height, width + NUM_SHIFTS, 3]; a picture is a window of `width` columns of it.

    Read-only: the array is shared by all callers.
    """
    ground = GROUNDS[background]
    unit = min(height, width)
    num_columns = width + (NUM_SHIFTS if shifts(background) else 0)
    # A pattern without a shift is mirror-symmetric in the picture.
    x = (np.arange(num_columns)[None, :].astype(np.float32) + 0.5 - width / 2) / unit
    horizon = round(HORIZON * height) if ground.stands else height
    zones = [_paint_zone(ground.upper, x, horizon, unit, None if ground.stands else ground.texture)]
    if ground.surface is not None:
        zones.append(_paint_zone(ground.surface, x, height - horizon, unit, ground.texture))
    canvas: NDArray[np.uint8] = np.rint(np.concatenate(zones).clip(0, 255)).astype(np.uint8)
    canvas.flags.writeable = False
    return canvas


def shifts(background: str) -> bool:
    """Whether two pictures of the background differ by a shift."""
    return GROUNDS[background].texture not in (None, _checkers)


@cache
def contrast(colour: str, background: str) -> float:
    """Return the smallest ΔE between an object's colour and any colour of the ground."""
    return min(
        distance_to_band(lab(COLOURS[colour]), band).item() for band in GROUNDS[background].bands
    )


def distance_to_band(colours: Floats, band: Band) -> Floats:
    """Return the ΔE of L*a*b* colours [..., 3] to the line between a band's two colours."""
    start, stop = lab(band)
    along, offset = stop - start, colours - start
    length = float(along @ along)
    share = np.clip(offset @ along / length, 0, 1) if length else np.zeros(offset.shape[:-1])
    nearest: Floats = offset - share[..., None] * along
    distance: Floats = np.sqrt((nearest * nearest).sum(-1))
    return distance


def _paint_zone(
    band: Band,
    x: Floats,
    height: int,
    unit: int,
    texture: Callable[[Floats, Floats], tuple[Floats, Floats]] | None,
) -> Floats:
    y = ((np.arange(height) + 0.5) / unit).astype(np.float32)[:, None]
    fall = np.broadcast_to((y / (height / unit)), (height, x.shape[1]))
    place, light = texture(x, y) if texture else (fall, np.ones_like(fall))
    start, stop = np.array(band, dtype=np.float32)
    colours: Floats = (start + np.clip(place, 0, 1)[..., None] * (stop - start)) * light[..., None]
    return colours


def _smoothstep(values: Floats, low: float, high: float) -> Floats:
    t = np.clip((values - low) / (high - low), 0, 1)
    result: Floats = t * t * (3 - 2 * t)
    return result


def _planks(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Boards across the picture, wider towards the viewer."""
    board = np.sqrt(y / 0.024 + 0.4)
    index, inside = np.floor(board), board % 1
    tone = 0.5 + 0.32 * np.sin(2.4 * index + 1)
    grain = 0.16 * np.sin(5 * board + 2.2 * np.sin(3.1 * x + 1.7 * index) + 1.3 * index)
    seam = 1 - 0.22 * (1 - _smoothstep(np.minimum(inside, 1 - inside), 0.02, 0.09))
    return tone + grain, seam


def _meadow(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    wave = np.sin(9 * x + 2 * np.sin(7 * y)) * np.sin(17 * y + 1.5 * np.sin(5 * x))
    return 0.15 + 1.1 * y + 0.13 * wave, np.ones_like(wave)


def _dunes(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    ripple = np.sin(34 * y**0.8 + 1.2 * np.sin(4.2 * x) + 0.5 * np.sin(9.7 * x))
    return 0.25 + 0.7 * y + 0.22 * ripple, np.ones_like(ripple)


def _waves(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    crest = np.sin(46 * y**0.75 + 0.9 * np.sin(11 * x + 9 * y))
    return 0.1 + 0.9 * y - 0.22 * _smoothstep(crest, 0.1, 1.0), np.ones_like(crest)


def _clouds(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Places on the band run from blue to white."""
    cover = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=np.float32)
    for row in range(8):
        # Each row of clouds repeats at its own distance.
        top, apart = 0.14 + 0.31 * row, 0.83 + 0.11 * (row % 3)
        at = (x + 0.37 * row + 0.21) % apart - apart / 2
        for dx, dy, radius in ((0.0, 0.0, 0.085), (0.1, 0.015, 0.065), (-0.1, 0.02, 0.06)):
            far = np.sqrt((at - dx) ** 2 + ((y - top - dy) * 1.35) ** 2)
            cover = np.maximum(cover, 1 - _smoothstep(far, radius * 0.55, radius * 1.3))
    return 0.12 + 0.22 * y + 0.55 * cover, np.ones_like(cover)


def _stars(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    light = np.ones(np.broadcast_shapes(x.shape, y.shape), dtype=np.float32)
    for row in range(24):
        apart = 0.62 + 0.09 * (row % 4)
        at = (x + 0.41 * row) % apart - apart / 2
        far = np.hypot(at, y - 0.06 - 0.085 * row)
        light += (2.6 + row % 3) * (1 - _smoothstep(far, 0.003, 0.012 + 0.003 * (row % 2)))
    return 0.8 * y * np.ones_like(x), light


def _checkers(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    cells = np.floor(x * 8) + np.floor(y * 8)
    return (cells % 2).astype(np.float32), np.ones_like(cells)


def _plain(rgb: Rgb) -> Ground:
    return Ground((rgb, rgb))


GROUNDS: dict[str, Ground] = {
    "white": _plain((250, 250, 250)),
    "grey": _plain((184, 187, 192)),
    "black": _plain((24, 24, 28)),
    "blue": _plain((148, 196, 244)),
    "green": _plain((184, 228, 176)),
    "yellow": _plain((255, 238, 164)),
    "pink": _plain((255, 208, 220)),
    "table": Ground(((240, 196, 158), (228, 180, 142)), ((176, 122, 74), (128, 82, 46)), _planks),
    "grass": Ground(((140, 198, 240), (164, 212, 242)), ((132, 196, 84), (70, 146, 58)), _meadow),
    "sand": Ground(((116, 186, 232), (152, 206, 238)), ((246, 222, 164), (218, 182, 118)), _dunes),
    "sea": Ground(((250, 206, 146), (252, 220, 170)), ((74, 156, 204), (22, 88, 146)), _waves),
    "sky": Ground(((92, 168, 236), (250, 252, 255)), texture=_clouds),
    "night": Ground(((16, 20, 52), (40, 48, 102)), texture=_stars),
    "checkerboard": Ground(((240, 240, 240), (186, 192, 200)), texture=_checkers),
}
"""Every background by its name; the first seven are plain colours."""
