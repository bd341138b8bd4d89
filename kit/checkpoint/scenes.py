"""What can be in a picture: scenes, their random making, and which of them training never sees."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from kit.checkpoint.grounds import GROUNDS, MIN_CONTRAST, NUM_SHIFTS, contrast, shifts
from kit.checkpoint.palette import COLOURS
from kit.checkpoint.shapes import KINDS, SIDE_STEP, extent
from kit.errors import ConfigError

MATERIALS = ("matte", "ceramic", "wooden", "metal", "glass")

SIZES = {"small": 0.25, "medium": 0.4, "large": 0.6}
"""Side of an object as a share of the canvas unit (see `canvas_unit`)."""

ARRANGEMENTS = {"single": 0.5, "pair": 0.23, "group": 0.2, "triple": 0.07}
"""How often training draws each. A group is two or three equal objects; the objects of a pair and
of a triple differ."""

POSITIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "top": (0, -1),
    "bottom": (0, 1),
    "centre": (0, 0),
    "top left": (-1, -1),
    "top right": (1, -1),
    "bottom left": (-1, 1),
    "bottom right": (1, 1),
}
"""Where a single object can be: side and height, each -1, 0 (the middle) or 1."""

RELATIONS = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
"""Each relation with its inverse."""

HELD_OUT_ONE_IN = 11
"""One of so many combinations of object, colour and background is never trained on."""

MIN_SHORT_SIDE, MAX_RATIO, SIDE_MULTIPLE = 128, 4, 16
"""Canvases that objects fit in and that the VAE can encode."""

EDGE_MARGIN = 0.055
"""What an object keeps from the canvas edge, as a share of the shorter side."""

_GAP = 0.07
_CLEARLY_ASIDE, _CLEARLY_CENTRAL = 0.37, 0.06
"""As shares of an axis: how near to the edge, and how far from the middle, a named place is."""


@dataclass(frozen=True)
class SceneObject:
    """One object; (x, y) is the middle of its bounding box and `side` its scale, in pixels."""

    kind: str
    colour: str
    material: str
    size: str
    side: int
    x: int
    y: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Top, left, bottom, right in pixels; the last two are not included."""
        height, width = extent(self.kind, self.side)
        top, left = self.y - height // 2, self.x - width // 2
        return top, left, top + height, left + width


@dataclass(frozen=True)
class Scene:
    """One picture before it is drawn. Objects are in order, left to right or top to bottom."""

    height: int
    width: int
    background: str
    shift: int
    """Which of the NUM_SHIFTS windows of the texture, in pixels."""
    objects: tuple[SceneObject, ...]

    @property
    def is_group(self) -> bool:
        """Whether it shows several equal objects."""
        return len(self.objects) > 1 and len({(o.kind, o.colour) for o in self.objects}) == 1

    @property
    def position(self) -> str | None:
        """The word of POSITIONS for a single object's place; None where no word is clearly right.

        Where objects stand on a surface only the side has a word: they all stand below the middle.
        """
        if len(self.objects) != 1:
            return None
        (one,) = self.objects
        stands = GROUNDS[self.background].stands
        side, height = _place(one.x / self.width), _place(one.y / self.height)
        if stands:
            high_enough = one.y / self.height < 0.5 + 2 * _CLEARLY_CENTRAL
            height = 0 if side or high_enough else None
        return next((word for word, at in POSITIONS.items() if at == (side, height)), None)

    @property
    def held_out(self) -> bool:
        """Whether training never sees it: one of its objects is a held-out combination."""
        return any(is_held_out(o.kind, o.colour, self.background) for o in self.objects)


def is_held_out(kind: str, colour: str, background: str) -> bool:
    """Return whether training never sees the combination, in any phrasing: the same for ever."""
    return zlib.crc32(f"{kind} {colour} {background}".encode()) % HELD_OUT_ONE_IN == 0


def relation(a: SceneObject, b: SceneObject) -> str | None:
    """Return where `a` is, seen from `b`, if one word is clearly right."""
    top, left, bottom, right = a.box
    other_top, other_left, other_bottom, other_right = b.box
    dx, dy = abs(a.x - b.x), abs(a.y - b.y)
    if dx > dy and right < other_left:
        return "left of"
    if dx > dy and left > other_right:
        return "right of"
    if dy > dx and bottom < other_top:
        return "above"
    if dy > dx and top > other_bottom:
        return "below"
    return None


def canvas_unit(height: int, width: int) -> float:
    """Return the length in pixels that object sizes are shares of.

    It is the square canvas's side; on long canvases it grows with the area, but stays below 1.25
    shorter sides, so that a large object still fits.
    """
    return min(math.sqrt(height * width), 1.25 * min(height, width))


def check_canvas(height: int, width: int) -> None:
    """Raise ConfigError unless scenes can be made for the canvas."""
    short, long = sorted((height, width))
    if height % SIDE_MULTIPLE or width % SIDE_MULTIPLE:
        raise ConfigError(
            "size", f"both sides must be multiples of {SIDE_MULTIPLE}", value=(height, width)
        )
    if short < MIN_SHORT_SIDE or long > MAX_RATIO * short:
        raise ConfigError(
            "size",
            f"the shorter side must be at least {MIN_SHORT_SIDE} and the longer one at most "
            f"{MAX_RATIO} times as long",
            value=(height, width),
        )


def random_scene(
    draw: np.random.Generator,
    *,
    size: tuple[int, int],
    arrangement: str | None = None,
    held_out: bool = False,
) -> Scene:
    """Make a scene for a canvas of `size` (height, width) that `check_canvas` allows.

    `arrangement` is a key of ARRANGEMENTS, None for any. With `held_out` every scene is one that
    training never sees, without it none is.
    """
    arrangement = arrangement or _pick_weighted(draw, ARRANGEMENTS)
    while True:
        background = _pick(draw, tuple(GROUNDS))
        looks = _random_looks(draw, arrangement, background)
        if any(is_held_out(*look, background) for look in looks) == held_out:
            break
    stands = GROUNDS[background].stands
    objects = (
        _place_one(draw, looks[0], size, stands=stands)
        if len(looks) == 1
        else _place_row(draw, looks, size, stands=stands, equal=arrangement != "pair")
    )
    shift = int(draw.integers(NUM_SHIFTS)) if shifts(background) else 0
    return Scene(*size, background, shift, objects)


Look = tuple[str, str]
"""Kind and colour."""


def _random_looks(draw: np.random.Generator, arrangement: str, background: str) -> list[Look]:
    kinds, colours = tuple(KINDS), colours_on(background)
    look = (_pick(draw, kinds), _pick(draw, colours))
    if arrangement == "group":
        return [look] * int(draw.integers(2, 4))
    looks = [look]
    for _ in range({"single": 0, "pair": 1, "triple": 2}[arrangement]):
        used = {kind for kind, _ in looks}
        same_kind = arrangement == "pair" and draw.random() < 0.15
        kind = look[0] if same_kind else _pick(draw, tuple(k for k in kinds if k not in used))
        others = tuple(c for c in colours if c != look[1]) if same_kind else colours
        looks.append((kind, _pick(draw, others)))
    return looks


@cache
def colours_on(background: str) -> tuple[str, ...]:
    """Return the colours that an object can have there and still be seen."""
    return tuple(c for c in COLOURS if contrast(c, background) >= MIN_CONTRAST)


def _place_one(
    draw: np.random.Generator, look: Look, size: tuple[int, int], *, stands: bool
) -> tuple[SceneObject, ...]:
    height, width = size
    margin = _margin(size)
    name = _pick(draw, tuple(SIZES))
    side = _side(SIZES[name] * canvas_unit(*size) * draw.uniform(0.94, 1.06))
    object_height, object_width = extent(look[0], side)
    x = _random_place(draw, object_width, width, margin)
    if stands:
        # What is tall stands nearer, so that its top stays in the picture.
        base = max(_standing_base(draw, height), margin + object_height)
        y = base - object_height + object_height // 2
    else:
        y = _random_place(draw, object_height, height, margin)
    return (SceneObject(look[0], look[1], _random_material(draw), name, side, x, y),)


def _place_row(
    draw: np.random.Generator,
    looks: list[Look],
    size: tuple[int, int],
    *,
    stands: bool,
    equal: bool,
) -> tuple[SceneObject, ...]:
    """Place two or three objects side by side, or one above the other.

    `equal` objects are of one size, and of one material where they are a group.
    """
    height, width = size
    # Rows of equal objects are mostly horizontal on a square.
    weight = (3 if equal else 1) * width**2
    across = stands or draw.random() < weight / (weight + height**2)
    length, breadth = (width, height) if across else (height, width)
    gap, margin = round(_GAP * min(size)), _margin(size)
    names, sides = _random_sizes(draw, looks, size, length - (len(looks) + 1) * gap, across, equal)
    extents = [extent(kind, side) for (kind, _), side in zip(looks, sides, strict=True)]
    lengths = [e[1] if across else e[0] for e in extents]
    breadths = [e[0] if across else e[1] for e in extents]
    free = length - sum(lengths) - (len(looks) + 1) * gap
    spaces = np.floor(draw.dirichlet([3.0] * (len(looks) + 1)) * free).astype(int)
    base, middle = _standing_base(draw, height), breadth * draw.uniform(0.44, 0.56)
    material = _random_material(draw)
    objects, at = [], 0
    for look, name, side, long, broad, space in zip(
        looks, names, sides, lengths, breadths, spaces[:-1], strict=True
    ):
        at += gap + int(space)
        along = at + long // 2
        at += long
        if stands:
            own_base = base + round(draw.uniform(-0.015, 0.015) * height)
            cross = max(own_base, margin + broad) - broad + broad // 2
        else:
            cross = round(middle + draw.uniform(-0.03, 0.03) * breadth)
            cross = max(margin + broad // 2, min(cross, breadth - margin - broad + broad // 2))
        x, y = (along, cross) if across else (cross, along)
        same = len(set(looks)) == 1
        own = material if same else _random_material(draw)
        objects.append(SceneObject(look[0], look[1], own, name, side, x, y))
    return tuple(objects)


def _random_sizes(
    draw: np.random.Generator,
    looks: list[Look],
    size: tuple[int, int],
    room: int,
    across: bool,
    equal: bool,
) -> tuple[list[str], list[int]]:
    """Draw sizes until the objects fit into `room` pixels; small ones are made to fit."""
    unit = canvas_unit(*size)
    names = ["small"] * len(looks)
    for _ in range(6):
        tried = [_pick(draw, ("small", "medium")) for _ in looks]
        tried = tried[:1] * len(looks) if equal else tried
        if _row_length(looks, [_side(SIZES[n] * unit) for n in tried], across) <= room:
            names = tried
            break
    sides = [_side(SIZES[name] * unit) for name in names]
    while _row_length(looks, sides, across) > room:
        sides = [side - SIDE_STEP for side in sides]
    return names, sides


def _row_length(looks: list[Look], sides: list[int], across: bool) -> int:
    return sum(extent(kind, side)[across] for (kind, _), side in zip(looks, sides, strict=True))


def _random_place(draw: np.random.Generator, length: int, axis: int, margin: int) -> int:
    """Draw a middle: in the axis's middle, or clearly aside where the object is short enough."""
    nearest = margin + length // 2
    farthest = math.floor(_CLEARLY_ASIDE * axis)
    zone = draw.random()
    if nearest > farthest or zone < 0.4:
        return round(axis * draw.uniform(0.5 - _CLEARLY_CENTRAL, 0.5 + _CLEARLY_CENTRAL))
    aside = int(draw.integers(nearest, farthest + 1))
    return aside if zone < 0.7 else axis - aside


def _standing_base(draw: np.random.Generator, height: int) -> int:
    return round(height * draw.uniform(0.79, 0.9))


def _place(share: float) -> int | None:
    """Return -1, 0 or 1 for a middle at `share` of an axis, None between them."""
    if abs(share - 0.5) <= _CLEARLY_CENTRAL + 0.005:
        return 0
    if abs(share - 0.5) >= 0.5 - _CLEARLY_ASIDE - 0.005:
        return -1 if share < 0.5 else 1
    return None


def _side(length: float) -> int:
    return round(length / SIDE_STEP) * SIDE_STEP


def _margin(size: tuple[int, int]) -> int:
    return round(EDGE_MARGIN * min(size))


def _random_material(draw: np.random.Generator) -> str:
    # As many plain objects as ones of a visible material.
    return "matte" if draw.random() < 0.4 else _pick(draw, MATERIALS[1:])


def _pick(draw: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[draw.integers(len(options))]


def _pick_weighted(draw: np.random.Generator, weights: dict[str, float]) -> str:
    at = draw.random() * sum(weights.values())
    for option, weight in weights.items():
        at -= weight
        if at < 0:
            return option
    return option
