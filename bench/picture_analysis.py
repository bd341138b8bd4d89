"""Finds the background of a picture and the regions that stand out from it, by colour alone.

Knows how the drawn world is coloured, and nothing of how a picture was made: drawn or generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kit.checkpoint.grounds import (
    GROUNDS,
    HORIZON,
    NUM_SHIFTS,
    SHADOW,
    Band,
    distance_to_band,
    ground_canvas,
    shifts,
)
from kit.checkpoint.palette import COLOURS, Floats, Rgb, lab

MAX_BACKGROUND_DISTANCE = 9.0
"""ΔE between a picture's rim and the nearest background's; beyond it is no known background."""

MIN_DISTANCE = 15.0
"""ΔE from the background at which a pixel belongs to an object."""

MIN_AREA = 0.006
"""Smaller regions are specks; a share of the squared shorter side."""

_GREYS = ("black", "white", "grey")
_GREY_SHARE = 0.64
"""Drawn grey things have at least 0.69 of such pixels, others at most 0.60."""
_RIM = 0.045
_BRIDGED = 0.012
"""Half of the gap that does not divide an object, as a share of the shorter side."""

_CUT_FROM = 0.25
"""How near to an end a region may be cut, as a share of its length."""

_LIGHTS = (1.0, 1 - SHADOW / 3, 1 - 2 * SHADOW / 3, 1 - SHADOW)


@dataclass(frozen=True)
class Region:
    """One connected thing before the background, in pixels; box ends are not included."""

    top: int
    left: int
    bottom: int
    right: int
    colour: str
    """The nearest colour of COLOURS for most of its pixels."""
    purity: float
    """Share of its pixels that are nearest to `colour`."""


def find_background(picture: NDArray[np.uint8]) -> tuple[str | None, float]:
    """Return the name of the background and its ΔE to the picture's rim.

    `picture` is sRGB [height, width, 3]. The name is None where no known background is near.
    """
    names, references = _references(picture.shape[0], picture.shape[1])
    rim = _rim(picture)
    distances = np.sqrt(((references - rim) ** 2).sum(-1)).mean((1, 2))
    nearest = int(distances.argmin())
    distance = float(distances[nearest])
    return (names[nearest] if distance <= MAX_BACKGROUND_DISTANCE else None), distance


def find_regions(picture: NDArray[np.uint8], background: str) -> list[Region]:
    """Return what stands out from a background, from left to right.

    `picture` is sRGB [height, width, 3]. A gap of about one fortieth of the shorter side does
    not divide a region; specks are left out.
    """
    unit = min(picture.shape[:2])
    colours = lab(picture)
    mask = _object_mask(colours, background)
    bridged = max(1, round(_BRIDGED * unit))
    closed = _filled(_shrunk(_grown(mask, bridged), bridged))
    core = _shrunk(mask, 2)
    found = [
        _region(label & mask, core, colours)
        for label, area in _components(closed)
        if area >= MIN_AREA * unit * unit
    ]
    return sorted(found, key=lambda region: region.left + region.right)


def cut_region(
    picture: NDArray[np.uint8], background: str, region: Region
) -> list[tuple[Region, Region]]:
    """Return the region cut in two at its narrowest place: side by side, one above the other.

    Two objects that touch are one region. `picture` and `background` as in `find_regions`.
    """
    colours = lab(picture)
    mask = _object_mask(colours, background)
    box = np.zeros_like(mask)
    box[region.top : region.bottom, region.left : region.right] = True
    mask &= box
    core = _shrunk(mask, 2)
    pairs = []
    for axis, start in ((0, region.left), (1, region.top)):
        widths = mask.sum(axis)
        length = (region.right, region.bottom)[axis] - start
        low, high = round(_CUT_FROM * length), round((1 - _CUT_FROM) * length)
        at = start + low + int(widths[start + low : start + high].argmin())
        halves = []
        for part in (slice(None, at), slice(at, None)):
            half = np.zeros_like(mask)
            where = (slice(None), part) if axis == 0 else (part, slice(None))
            half[where] = mask[where]
            halves.append(half)
        if all(half.any() for half in halves):
            first, second = (_region(half, core, colours) for half in halves)
            pairs.append((first, second))
    return pairs


def _object_mask(colours: Floats, background: str) -> NDArray[np.bool_]:
    return _despeckled(_unlike(colours, background) > MIN_DISTANCE)


def _region(own: NDArray[np.bool_], core: NDArray[np.bool_], colours: Floats) -> Region:
    """Return the region of the pixels `own`; `core` are those away from edges."""
    rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
    inner = own & core
    # The edge of an object is mixed with the background.
    colour, purity = _main_colour(colours[inner if inner.sum() > 0.3 * own.sum() else own])
    return Region(
        top=int(rows[0]),
        left=int(columns[0]),
        bottom=int(rows[-1]) + 1,
        right=int(columns[-1]) + 1,
        colour=colour,
        purity=purity,
    )


@cache
def _references(height: int, width: int) -> tuple[tuple[str, ...], Floats]:
    """Names [G], and the mean rim of each empty ground over its shifts, [G, ...] as of `_rim`."""
    rims = []
    for name in GROUNDS:
        canvas = ground_canvas(name, height, width)
        starts = range(0, NUM_SHIFTS, 8) if shifts(name) else (0,)
        rims.append(np.mean([_rim(canvas[:, at : at + width]) for at in starts], axis=0))
    return tuple(GROUNDS), np.stack(rims)


def _rim(picture: NDArray[np.uint8]) -> Floats:
    """L*a*b* statistics of the four strips along the edges: [4, 2, 3], mean and deviation."""
    depth = max(4, round(_RIM * min(picture.shape[:2])))
    strips = (picture[:depth], picture[-depth:], picture[:, :depth], picture[:, -depth:])
    flat = [lab(strip).reshape(-1, 3) for strip in strips]
    return np.stack([np.stack([strip.mean(0), strip.std(0)]) for strip in flat])


def _unlike(colours: Floats, background: str) -> Floats:
    """Return the ΔE [height, width] of L*a*b* pixels to what the background may show there."""
    ground = GROUNDS[background]
    if ground.surface is None:
        return distance_to_band(colours, ground.upper)
    height = colours.shape[0]
    horizon, blur = round(HORIZON * height), max(2, height // 64)
    lights = [_lit(ground.surface, light) for light in _LIGHTS]
    # A blurred horizon mixes what meets there.
    zones = (
        (0, horizon - blur, [ground.upper]),
        (horizon - blur, horizon + blur, [ground.upper, *lights, (ground.upper[1], lights[0][0])]),
        (horizon + blur, height, lights),
    )
    return np.concatenate(
        [
            np.min([distance_to_band(colours[top:bottom], band) for band in bands], axis=0)
            for top, bottom, bands in zones
        ]
    )


def _lit(band: Band, light: float) -> Band:
    def scaled(rgb: Rgb) -> Rgb:
        red, green, blue = (round(channel * light) for channel in rgb)
        return red, green, blue

    return scaled(band[0]), scaled(band[1])


def _main_colour(pixels: Floats) -> tuple[str, float]:
    """Return the colour that most L*a*b* pixels [N, 3] are nearest to, and their share."""
    palette = lab(list(COLOURS.values()))
    distances = ((pixels[:, None] - palette) ** 2).sum(-1)
    votes = np.bincount(distances.argmin(1), minlength=len(COLOURS))
    is_grey = np.array([colour in _GREYS for colour in COLOURS])
    # Windows and tyres are grey, and shading spreads the other votes: first the group, then in it.
    votes[is_grey != (votes[is_grey].sum() > _GREY_SHARE * len(pixels))] = 0
    winner = int(votes.argmax())
    return list(COLOURS)[winner], float(votes[winner] / len(pixels))


def _despeckled(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Give every pixel the state of most of the nine around it: lines of two pixels stay."""
    padded = np.pad(mask, 1, mode="edge").astype(np.uint8)
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    majority: NDArray[np.bool_] = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] > 4
    return majority


def _grown(mask: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    """Set every pixel that has a set one within a square of the radius."""
    for _ in range(2):
        grown = mask.copy()
        for shift in range(1, radius + 1):
            grown[shift:] |= mask[:-shift]
            grown[:-shift] |= mask[shift:]
        mask = grown.T
    return mask


def _shrunk(mask: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    """Clear every pixel that has a clear one within a square of the radius."""
    return ~_grown(~mask, radius)


def _filled(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Set the holes: a highlight may pass through the background's colour."""
    filled = mask.copy()
    for hole, _ in _components(~mask):
        if not (hole[0].any() or hole[-1].any() or hole[:, 0].any() or hole[:, -1].any()):
            filled |= hole
    return filled


def _components(mask: NDArray[np.bool_]) -> list[tuple[NDArray[np.bool_], int]]:
    """Return the 4-connected components as masks, each with its number of pixels."""
    height, width = mask.shape
    # Runs of set pixels, row by row: a row's run joins those of the row above that it overlaps.
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    stops = np.nonzero(edges == -1)[1]
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    first = np.searchsorted(rows, np.arange(height + 1))
    for row in range(1, height):
        above, below = int(first[row - 1]), int(first[row])
        while above < first[row] and below < first[row + 1]:
            if starts[above] < stops[below] and starts[below] < stops[above]:
                parent[root(below)] = root(above)
            if stops[above] < stops[below]:
                above += 1
            else:
                below += 1
    labels = np.zeros((height, width), dtype=np.int32)
    for run in range(len(rows)):
        labels[rows[run], starts[run] : stops[run]] = root(run) + 1
    names, areas = np.unique(labels[mask], return_counts=True)
    return [(labels == name, int(area)) for name, area in zip(names, areas, strict=True)]
