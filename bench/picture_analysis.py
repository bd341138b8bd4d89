"""Finds the background of a picture and the regions that stand out from it, by colour alone.

Knows how the drawn world is coloured, and nothing of how a picture was made: drawn or generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

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

MIN_DISTANCE = 14.0
"""ΔE from the background at which a pixel belongs to an object."""

MIN_AREA = 0.006
"""Smaller regions are specks; a share of the squared shorter side."""

_RIM = 0.045
_BRIDGED = 0.016
"""Half of the gap that does not divide an object, as a share of the shorter side."""

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

    `picture` is sRGB [height, width, 3]. A gap of about three hundredths of the shorter side does
    not divide a region; specks are left out.
    """
    unit = min(picture.shape[:2])
    colours = lab(picture)
    mask = _unlike(colours, background) > MIN_DISTANCE
    # An opening of one pixel removes the blurred line of a horizon.
    opened = _filtered(mask, ImageFilter.MinFilter(3), ImageFilter.MaxFilter(3))
    radius = 2 * max(1, round(_BRIDGED * unit)) + 1
    closed = _filtered(opened, ImageFilter.MaxFilter(radius), ImageFilter.MinFilter(radius))
    core = _filtered(opened, ImageFilter.MinFilter(5))
    found = []
    for label, area in _components(closed):
        own = label & opened
        if area < MIN_AREA * unit * unit or not own.any():
            continue
        rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
        inner = own & core
        # The edge of an object is mixed with the background.
        pixels = colours[inner if inner.sum() > 0.3 * own.sum() else own]
        colour, purity = _main_colour(pixels)
        box = rows[0], columns[0], rows[-1] + 1, columns[-1] + 1
        found.append(Region(*(int(edge) for edge in box), colour, purity))
    return sorted(found, key=lambda region: region.left + region.right)


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
    height = colours.shape[0]
    if ground.surface is None:
        return distance_to_band(colours, ground.upper)
    horizon, blur = round(HORIZON * height), max(2, height // 64)
    result = np.empty(colours.shape[:2], dtype=np.float32)
    upper, lower = colours[: horizon + blur], colours[horizon - blur :]
    result[: horizon + blur] = distance_to_band(upper, ground.upper)
    on_surface = np.min([distance_to_band(lower, _lit(ground.surface, s)) for s in _LIGHTS], axis=0)
    between = np.minimum(on_surface[: 2 * blur], result[horizon - blur : horizon + blur])
    result[horizon - blur :] = on_surface
    result[horizon - blur : horizon + blur] = between
    return result


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
    winner = int(votes.argmax())
    return list(COLOURS)[winner], float(votes[winner] / len(pixels))


def _filtered(mask: NDArray[np.bool_], *filters: ImageFilter.Filter) -> NDArray[np.bool_]:
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    for each in filters:
        image = image.filter(each)
    return np.asarray(image) > 127


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
        above, below = first[row - 1], first[row]
        while above < first[row] and below < first[row + 1]:
            if starts[above] < stops[below] and starts[below] < stops[above]:
                parent[root(below)] = root(above)
            if stops[above] < stops[below]:
                above += 1
            else:
                below += 1
    labels = np.zeros((height, width), dtype=np.int32)
    for run, (row, start, stop) in enumerate(zip(rows, starts, stops, strict=True)):
        labels[row, start:stop] = root(run) + 1
    names, areas = np.unique(labels[mask], return_counts=True)
    return [(labels == name, int(area)) for name, area in zip(names, areas, strict=True)]
