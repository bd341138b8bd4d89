"""The silhouettes of the drawn world, as coverage maps without colour.

Each kind is a function that draws on a Sketch in the unit square, x to the right, y down. A map is
cut to the silhouette's bounding box, so a fish is wider than tall.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from kit.checkpoint.palette import Floats, Paint

SIDE_STEP = 4
"""Sides are multiples of this many pixels, so that few maps are ever drawn."""

_OVERSAMPLING = 4
_NOTHING = 0
_ROLES = {name: at + 1 for at, name in enumerate(Paint._fields)}
_BODY_ROLES = ("body", "shade", "tint")

Point = tuple[float, float]


class Silhouette(NamedTuple):
    """One kind at one size; h and w are those of its bounding box, at most the side."""

    roles: tuple[int, ...]
    """The fields of Paint that the kind uses, by their place; R of them."""
    coverage: Floats
    """[R, h, w]: the share of each pixel that each role covers."""
    body: Floats
    """[h, w]: the share that shows the material: body, shade and tint."""
    alpha: Floats
    """[h, w]: the share that is covered at all."""
    depth: Floats
    """[h, w]: 0 at the edge, 1 well inside."""


@cache
def silhouette(kind: str, side: int) -> Silhouette:
    """Draw one of KINDS in a square of `side` pixels, a multiple of SIDE_STEP."""
    sketch = Sketch(side)
    KINDS[kind](sketch)
    return sketch.finish()


@cache
def extent(kind: str, side: int) -> tuple[int, int]:
    """Return the height and width of the silhouette's bounding box, in pixels."""
    height, width = silhouette(kind, side).depth.shape
    return height, width


class Sketch:
    """Takes shapes in unit coordinates; later ones cover earlier ones."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._scale = side * _OVERSAMPLING
        self._image = Image.new("L", (self._scale, self._scale), _NOTHING)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, role: str, points: Sequence[Point]) -> None:
        """Fill a polygon with a field of Paint, or erase it with role "nothing"."""
        scaled = [(x * self._scale, y * self._scale) for x, y in points]
        self._draw.polygon(scaled, fill=_ROLES.get(role, _NOTHING))

    def box(self, role: str, left: float, top: float, right: float, bottom: float) -> None:
        self.polygon(role, [(left, top), (right, top), (right, bottom), (left, bottom)])

    def disc(self, role: str, x: float, y: float, radius: float, radius_y: float = 0) -> None:
        """Fill an ellipse around (x, y); `radius_y` 0 means a circle."""
        self.polygon(role, _arc(x, y, radius, radius_y or radius, 0, 360))

    def curve(self, role: str, points: Sequence[Point]) -> None:
        """Fill the closed smooth curve through the points."""
        self.polygon(role, _smooth([*points[-1:], *points, *points[:2]]))

    def stroke(self, role: str, points: Sequence[Point], width: float) -> None:
        """Draw a line of round ends through the points."""
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            length = math.hypot(x1 - x0, y1 - y0) or 1.0
            dx, dy = (y0 - y1) / length * width / 2, (x1 - x0) / length * width / 2
            self.polygon(
                role,
                [(x0 + dx, y0 + dy), (x1 + dx, y1 + dy), (x1 - dx, y1 - dy), (x0 - dx, y0 - dy)],
            )
        for x, y in points:
            self.disc(role, x, y, width / 2)

    def finish(self) -> Silhouette:
        """Box-reduce to the final size and cut to the bounding box."""
        indices = np.asarray(self._image)
        fields = [at for at, role in enumerate(_ROLES.values()) if (indices == role).any()]
        shares = np.stack([_box_reduce(indices == at + 1) for at in fields])
        alpha = _box_reduce(indices > _NOTHING)
        rows, columns = np.flatnonzero(alpha.any(1)), np.flatnonzero(alpha.any(0))
        cut = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        body = [at for at, field in enumerate(fields) if Paint._fields[field] in _BODY_ROLES]
        return Silhouette(
            roles=tuple(fields),
            coverage=np.ascontiguousarray(shares[:, *cut]),
            body=np.ascontiguousarray(shares[body].sum(0)[cut]),
            alpha=np.ascontiguousarray(alpha[cut]),
            depth=_depth(alpha[cut], self._side),
        )


def _box_reduce(mask: NDArray[np.bool_]) -> Floats:
    reduced = Image.fromarray(mask.astype(np.uint8) * 255).reduce(_OVERSAMPLING)
    return np.asarray(reduced, dtype=np.float32) / 255


def _depth(alpha: Floats, side: int) -> Floats:
    radius = side / 18
    pad = math.ceil(3 * radius)
    padded = Image.fromarray((np.pad(alpha, pad) * 255).astype(np.uint8))
    blurred = np.asarray(padded.filter(ImageFilter.GaussianBlur(radius)), dtype=np.float32)
    # A straight edge blurs to one half.
    depth: Floats = np.clip(blurred[pad:-pad, pad:-pad] / 127.5 - 1, 0, 1)
    return depth


def _arc(x: float, y: float, rx: float, ry: float, start: float, stop: float) -> list[Point]:
    """Points of an ellipse from angle `start` to `stop` in degrees, 0 to the right, 90 down."""
    angles = np.radians(np.linspace(start, stop, 73))
    return [(x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles]


def _smooth(points: Sequence[Point]) -> list[Point]:
    """Catmull-Rom spline through the points but the first and the last two ends."""
    p = np.array(points)
    t = np.linspace(0, 1, 16, endpoint=False)[:, None]
    a, b, c, d = p[:-3, None], p[1:-2, None], p[2:-1, None], p[3:, None]
    line = 0.5 * (
        2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3
    )
    return [(float(x), float(y)) for x, y in line.reshape(-1, 2)]


def _mirrored(profile: Sequence[Point], axis: float = 0.5) -> list[Point]:
    """A left profile, top to bottom, with its mirror image, bottom to top."""
    return [*profile, *((2 * axis - x, y) for x, y in reversed(profile))]


def _open_smooth(profile: Sequence[Point]) -> list[Point]:
    return [*_smooth([profile[0], *profile, profile[-1]]), profile[-1]]


def _circle(s: Sketch) -> None:
    s.disc("body", 0.5, 0.5, 0.47)


def _square(s: Sketch) -> None:
    s.box("body", 0.08, 0.08, 0.92, 0.92)


def _triangle(s: Sketch) -> None:
    s.polygon("body", [(0.5, 0.05), (1.0, 0.93), (0.0, 0.93)])


def _star(s: Sketch) -> None:
    points = []
    for at in range(10):
        radius, angle = (0.22, 0.5)[at % 2 == 0], math.radians(36 * at - 90)
        points.append((0.5 + radius * math.cos(angle), 0.52 + radius * math.sin(angle)))
    s.polygon("body", points)


def _heart(s: Sketch) -> None:
    t = np.linspace(0, 2 * math.pi, 200)
    x = np.sin(t) ** 3
    y = (13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 17
    s.polygon("body", list(zip(0.5 + 0.5 * x, 0.44 - 0.5 * y, strict=True)))


def _moon(s: Sketch) -> None:
    s.disc("body", 0.5, 0.5, 0.5)
    s.disc("nothing", 0.7, 0.44, 0.41)


def _vase(s: Sketch) -> None:
    profile = [(0.32, 0.05), (0.385, 0.14), (0.4, 0.24), (0.26, 0.38), (0.185, 0.56), (0.24, 0.79)]
    s.polygon("body", _mirrored(_open_smooth([*profile, (0.35, 0.96)])))
    s.disc("body", 0.5, 0.96, 0.15, 0.035)
    s.disc("tint", 0.5, 0.055, 0.18, 0.045)
    s.disc("shade", 0.5, 0.06, 0.14, 0.028)


def _cup(s: Sketch) -> None:
    s.disc("body", 0.72, 0.5, 0.25, 0.22)
    s.disc("nothing", 0.715, 0.5, 0.15, 0.12)
    profile = [(0.04, 0.17), (0.05, 0.5), (0.1, 0.75), (0.2, 0.88)]
    s.polygon("body", _mirrored(_open_smooth(profile), axis=0.4))
    s.disc("body", 0.4, 0.875, 0.2, 0.04)
    s.disc("tint", 0.4, 0.17, 0.36, 0.075)
    s.disc("shade", 0.4, 0.18, 0.3, 0.05)


def _bottle(s: Sketch) -> None:
    profile = [(0.43, 0.1), (0.43, 0.3), (0.4, 0.38), (0.33, 0.46), (0.32, 0.54), (0.32, 0.94)]
    s.polygon("body", _mirrored([*profile, (0.35, 1.0)]))
    s.box("dark", 0.42, 0.0, 0.58, 0.11)
    s.box("light", 0.38, 0.6, 0.62, 0.84)


def _house(s: Sketch) -> None:
    s.box("shade", 0.7, 0.08, 0.8, 0.4)
    s.box("body", 0.1, 0.4, 0.9, 1.0)
    s.polygon("shade", [(0.5, 0.03), (1.0, 0.45), (0.0, 0.45)])
    s.box("dark", 0.58, 0.64, 0.77, 1.0)
    s.box("light", 0.21, 0.58, 0.45, 0.8)


def _tree(s: Sketch) -> None:
    s.polygon("bark", [(0.45, 0.5), (0.55, 0.5), (0.59, 1.0), (0.41, 1.0)])
    for x, y, radius in ((0.3, 0.46, 0.22), (0.7, 0.46, 0.22), (0.5, 0.26, 0.26), (0.5, 0.5, 0.2)):
        s.disc("body", x, y, radius)
    s.disc("tint", 0.42, 0.22, 0.11)


def _flower(s: Sketch) -> None:
    s.stroke("stalk", [(0.5, 0.4), (0.5, 0.97)], 0.055)
    s.curve("stalk", [(0.5, 0.9), (0.6, 0.76), (0.78, 0.7), (0.68, 0.86)])
    s.curve("stalk", [(0.5, 0.9), (0.4, 0.76), (0.22, 0.7), (0.32, 0.86)])
    for at in range(6):
        angle = math.radians(60 * at - 90)
        s.disc("body", 0.5 + 0.2 * math.cos(angle), 0.33 + 0.2 * math.sin(angle), 0.135)
    s.disc("stamen", 0.5, 0.33, 0.115)


def _mushroom(s: Sketch) -> None:
    profile = [(0.42, 0.45), (0.4, 0.7), (0.34, 0.92)]
    s.polygon("cream", _mirrored(_open_smooth(profile)))
    s.disc("cream", 0.5, 0.92, 0.16, 0.05)
    s.polygon("body", _arc(0.5, 0.52, 0.5, 0.48, 180, 360))
    s.disc("body", 0.5, 0.52, 0.5, 0.07)
    for x, y, radius in ((0.3, 0.33, 0.075), (0.57, 0.22, 0.08), (0.76, 0.4, 0.065)):
        s.disc("light", x, y, radius)


def _fish(s: Sketch) -> None:
    s.polygon("shade", [(0.66, 0.5), (1.0, 0.24), (0.92, 0.5), (1.0, 0.76)])
    s.curve("shade", [(0.28, 0.32), (0.42, 0.16), (0.62, 0.2), (0.6, 0.36)])
    s.curve("body", [(0.0, 0.52), (0.16, 0.34), (0.4, 0.27), (0.62, 0.37), (0.78, 0.5),
                     (0.62, 0.65), (0.4, 0.75), (0.16, 0.7)])  # fmt: skip
    s.curve("shade", [(0.4, 0.52), (0.54, 0.46), (0.58, 0.58), (0.46, 0.62)])
    s.disc("light", 0.18, 0.46, 0.055)
    s.disc("dark", 0.175, 0.46, 0.03)


def _butterfly(s: Sketch) -> None:
    for mirror in (1, -1):

        def x(value: float, mirror: int = mirror) -> float:
            return 0.5 + mirror * value

        s.curve("body", [(x(0.0), 0.46), (x(0.16), 0.2), (x(0.4), 0.06), (x(0.49), 0.2),
                         (x(0.42), 0.42), (x(0.2), 0.54), (x(0.0), 0.52)])  # fmt: skip
        s.curve("tint", [(x(0.0), 0.52), (x(0.22), 0.53), (x(0.38), 0.66), (x(0.34), 0.88),
                         (x(0.18), 0.86), (x(0.03), 0.64)])  # fmt: skip
        s.disc("light", x(0.33), 0.25, 0.06)
        s.stroke("dark", [(x(0.0), 0.32), (x(0.09), 0.14)], 0.025)
    s.disc("shade", 0.5, 0.53, 0.045, 0.24)


def _boat(s: Sketch) -> None:
    s.box("dark", 0.46, 0.0, 0.51, 0.78)
    s.polygon("body", [(0.51, 0.03), (0.51, 0.69), (0.92, 0.69)])
    s.polygon("tint", [(0.46, 0.16), (0.46, 0.69), (0.12, 0.69)])
    s.polygon("body", [(0.0, 0.74), (1.0, 0.74), (0.82, 1.0), (0.18, 1.0)])
    s.box("shade", 0.0, 0.72, 1.0, 0.77)


def _car(s: Sketch) -> None:
    s.polygon("body", _open_smooth([(0.2, 0.52), (0.3, 0.3), (0.42, 0.25), (0.62, 0.25),
                                    (0.74, 0.34), (0.84, 0.52)]))  # fmt: skip
    s.polygon("light", [(0.27, 0.49), (0.34, 0.34), (0.49, 0.31), (0.49, 0.49)])
    s.polygon("light", [(0.54, 0.49), (0.54, 0.31), (0.65, 0.32), (0.75, 0.49)])
    s.curve("body", [(0.0, 0.6), (0.06, 0.51), (0.5, 0.48), (0.94, 0.52), (1.0, 0.62),
                     (0.98, 0.74), (0.5, 0.76), (0.03, 0.74)])  # fmt: skip
    for x in (0.24, 0.76):
        s.disc("dark", x, 0.73, 0.115)
        s.disc("light", x, 0.73, 0.05)


def _umbrella(s: Sketch) -> None:
    s.stroke("dark", [(0.5, 0.0), (0.5, 0.86)], 0.045)
    s.stroke("dark", _arc(0.41, 0.86, 0.09, 0.1, 0, 180), 0.045)
    s.polygon("body", _arc(0.5, 0.54, 0.5, 0.48, 180, 360))
    s.polygon("tint", _arc(0.5, 0.54, 0.17, 0.48, 180, 360))
    for at in range(3):
        s.disc("nothing", 1 / 6 + at / 3, 0.55, 1 / 6, 0.07)
    s.box("dark", 0.478, 0.46, 0.522, 0.7)


def _crown(s: Sketch) -> None:
    s.polygon("body", [(0.08, 0.86), (0.0, 0.3), (0.27, 0.55), (0.5, 0.18), (0.73, 0.55),
                       (1.0, 0.3), (0.92, 0.86)])  # fmt: skip
    s.box("shade", 0.08, 0.74, 0.92, 0.88)
    for x, y in ((0.05, 0.28), (0.5, 0.17), (0.95, 0.28)):
        s.disc("body", x, y, 0.055)
    for x in (0.27, 0.5, 0.73):
        s.disc("light", x, 0.81, 0.04)


def _cat(s: Sketch) -> None:
    s.stroke("body", _smooth([(0.6, 0.9), (0.6, 0.92), (0.82, 0.93), (0.9, 0.78), (0.84, 0.64),
                              (0.86, 0.5), (0.86, 0.5)]), 0.085)  # fmt: skip
    s.curve("body", [(0.42, 0.42), (0.58, 0.46), (0.7, 0.66), (0.72, 0.88), (0.62, 0.98),
                     (0.24, 0.98), (0.17, 0.86), (0.24, 0.6)])  # fmt: skip
    s.polygon("body", [(0.17, 0.24), (0.17, 0.0), (0.38, 0.12)])
    s.polygon("body", [(0.63, 0.24), (0.63, 0.0), (0.42, 0.12)])
    s.polygon("shade", [(0.21, 0.18), (0.21, 0.07), (0.31, 0.13)])
    s.polygon("shade", [(0.59, 0.18), (0.59, 0.07), (0.49, 0.13)])
    s.disc("body", 0.4, 0.3, 0.25, 0.21)
    for x in (0.31, 0.49):
        s.disc("light", x, 0.28, 0.05, 0.06)
        s.disc("dark", x, 0.285, 0.025, 0.045)
    s.polygon("dark", [(0.365, 0.38), (0.435, 0.38), (0.4, 0.42)])


def _rocket(s: Sketch) -> None:
    s.polygon("shade", [(0.36, 0.56), (0.18, 0.8), (0.18, 1.0), (0.4, 0.84)])
    s.polygon("shade", [(0.64, 0.56), (0.82, 0.8), (0.82, 1.0), (0.6, 0.84)])
    s.box("dark", 0.42, 0.84, 0.58, 0.94)
    profile = [(0.5, 0.0), (0.38, 0.16), (0.32, 0.36), (0.33, 0.62), (0.39, 0.86)]
    s.polygon("body", _mirrored(_open_smooth(profile)))
    s.disc("dark", 0.5, 0.38, 0.105)
    s.disc("light", 0.5, 0.38, 0.078)


def _apple(s: Sketch) -> None:
    s.stroke("bark", [(0.5, 0.3), (0.53, 0.05)], 0.05)
    s.curve("stalk", [(0.53, 0.17), (0.64, 0.03), (0.84, 0.03), (0.74, 0.17)])
    s.curve("body", [(0.5, 0.29), (0.34, 0.2), (0.12, 0.28), (0.05, 0.54), (0.18, 0.86),
                     (0.36, 0.98), (0.5, 0.93), (0.64, 0.98), (0.82, 0.86), (0.95, 0.54),
                     (0.88, 0.28), (0.66, 0.2)])  # fmt: skip


KINDS: dict[str, Callable[[Sketch], None]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "moon": _moon,
    "vase": _vase,
    "cup": _cup,
    "bottle": _bottle,
    "house": _house,
    "tree": _tree,
    "flower": _flower,
    "mushroom": _mushroom,
    "fish": _fish,
    "butterfly": _butterfly,
    "boat": _boat,
    "car": _car,
    "umbrella": _umbrella,
    "crown": _crown,
    "cat": _cat,
    "rocket": _rocket,
    "apple": _apple,
}
"""Every kind of object, with what draws it."""
