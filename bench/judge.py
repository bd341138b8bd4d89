"""Says what a picture shows, and whether that is what a caption asked for.

Backgrounds, colours and places come from image analysis, names from a network that was trained on
drawn pictures only. The judge needs no part of the model that it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from bench.picture_analysis import Region, cut_region, find_background, find_regions
from bench.shape_classifier import NO_OBJECT, ShapeNet, classify, take_crop
from kit.checkpoint.captions import Facts, ObjectFacts
from kit.checkpoint.scenes import POSITIONS, canvas_unit

MIN_CONFIDENCE = 0.35
"""Below this probability an object has no name."""

MIN_HALF = 0.6
"""Two objects that touch are told apart when both have a name with more than this probability."""

MIN_ASIDE = 0.08
"""How much farther to a side than another an object must be, as a share of the canvas unit."""

_ASIDE_BELOW, _CENTRAL_FROM = 0.42, 0.36
_CENTRAL_HEIGHT_FROM = 0.3
"""As shares of an axis. Objects on a surface stand below the middle, so heights have more room."""


@dataclass(frozen=True)
class SeenObject:
    """One object that was found."""

    kind: str | None
    """None: nothing that has a name."""
    colour: str
    x: float
    y: float
    """The middle of its box, as shares of the picture's width and height."""
    size: float
    """The longer side of its box, as a share of the canvas unit."""
    confidence: float
    """Probability of the kind, 0 to 1."""


@dataclass(frozen=True)
class Seen:
    """What a picture shows."""

    height: int
    width: int
    background: str | None
    """None: no known background. Objects are not looked for then."""
    objects: tuple[SeenObject, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether a picture shows what its caption names; None where the caption does not name it.

    A relation, a count or a position of an object that is not there is wrong.
    """

    object: bool
    """Each named object is there, and no other."""
    colour: bool | None
    background: bool | None
    relation: bool | None
    count: bool | None
    position: bool | None

    @property
    def right(self) -> bool:
        """Whether everything named is as named."""
        return all(getattr(self, field.name) is not False for field in fields(self))


class Judge:
    """Looks at pictures with a trained network."""

    def __init__(self, net: ShapeNet) -> None:
        self._net = net

    def look(self, picture: NDArray[np.uint8]) -> Seen:
        """Return what an sRGB picture [height, width, 3] shows, objects from left to right."""
        height, width = picture.shape[:2]
        background, _ = find_background(picture)
        if background is None:
            return Seen(height, width, None, ())
        found: list[SeenObject] = []
        for region in find_regions(picture, background):
            whole = self._name(picture, [region])
            found += whole if whole[0].kind else self._halves(picture, background, region) or whole
        return Seen(height, width, background, tuple(sorted(found, key=lambda one: one.x)))

    def _halves(
        self, picture: NDArray[np.uint8], background: str, region: Region
    ) -> list[SeenObject]:
        """Return the two objects that a region without a name is, or nothing."""
        pairs = [self._name(picture, pair) for pair in cut_region(picture, background, region)]
        named = [p for p in pairs if all(o.kind and o.confidence > MIN_HALF for o in p)]
        return max(named, key=lambda pair: min(one.confidence for one in pair), default=[])

    def _name(self, picture: NDArray[np.uint8], regions: Sequence[Region]) -> list[SeenObject]:
        height, width = picture.shape[:2]
        names = classify(self._net, [take_crop(picture, region) for region in regions])
        return [
            SeenObject(
                kind=None if kind == NO_OBJECT or confidence < MIN_CONFIDENCE else kind,
                colour=region.colour,
                x=(region.left + region.right) / 2 / width,
                y=(region.top + region.bottom) / 2 / height,
                size=max(region.bottom - region.top, region.right - region.left)
                / canvas_unit(height, width),
                confidence=confidence,
            )
            for region, (kind, confidence) in zip(regions, names, strict=True)
        ]

    def judge(self, picture: NDArray[np.uint8], facts: Facts) -> Verdict:
        """Look at a picture [height, width, 3] and compare it with a caption's facts."""
        return compare(self.look(picture), facts)


def compare(seen: Seen, facts: Facts) -> Verdict:
    """Compare what a picture shows with what its caption names.

    Named objects are matched with seen ones so that as much as possible is right.
    """
    matches = permutations(seen.objects, min(len(seen.objects), len(facts.objects)))
    verdicts = [_compare_matched(seen, match, facts) for match in matches]
    return max(verdicts, key=_num_right)


def _num_right(verdict: Verdict) -> int:
    return sum(getattr(verdict, field.name) is True for field in fields(verdict))


def _compare_matched(seen: Seen, match: tuple[SeenObject, ...], facts: Facts) -> Verdict:
    """`match[i]` is what is taken for `facts.objects[i]`; there may be too few."""
    complete = len(match) == len(facts.objects)
    pairs: list[tuple[SeenObject, ObjectFacts]] = list(zip(match, facts.objects, strict=False))
    kinds_right = [_is_kind(one, named) for one, named in pairs]
    colours_right = [named.colour in (None, one.colour) for one, named in pairs]
    background = None if facts.background is None else seen.background == facts.background
    colour = relation = count = position = None
    if any(named.colour is not None for named in facts.objects):
        colour = complete and all(colours_right)
    if facts.relations:
        relation = (
            complete
            and all(kinds_right)
            and all(is_related(seen, match[i], word, match[j]) for i, word, j in facts.relations)
        )
    if facts.count is not None:
        named = facts.objects[0]
        count = sum(_is_kind(one, named) for one in seen.objects) == facts.count
    if facts.position is not None:
        position = complete and all(kinds_right) and _is_at(match[0], facts.position)
    return Verdict(
        object=len(seen.objects) == len(facts.objects) and all(kinds_right),
        colour=colour,
        background=background,
        relation=relation,
        count=count,
        position=position,
    )


def _is_kind(one: SeenObject, named: ObjectFacts) -> bool:
    return one.kind is not None and named.kind in (None, one.kind)


def is_related(seen: Seen, first: SeenObject, word: str, second: SeenObject) -> bool:
    """Whether one object is clearly left of, right of, above or below another one."""
    unit = canvas_unit(seen.height, seen.width)
    right = (first.x - second.x) * seen.width / unit
    down = (first.y - second.y) * seen.height / unit
    along, across = (right, down) if word in ("left of", "right of") else (down, right)
    if word in ("left of", "above"):
        along = -along
    return along > MIN_ASIDE and along > abs(across)


def _is_at(one: SeenObject, position: str) -> bool:
    side, height = POSITIONS[position]
    if not side and not height:
        return (
            abs(one.x - 0.5) < 0.5 - _CENTRAL_FROM and abs(one.y - 0.5) < 0.5 - _CENTRAL_HEIGHT_FROM
        )
    # "On the left" says nothing of the height.
    return _is_aside(one.x, side) and _is_aside(one.y, height)


def _is_aside(place: float, side: int) -> bool:
    return side == 0 or (0.5 + side * (place - 0.5) > 1 - _ASIDE_BELOW)
