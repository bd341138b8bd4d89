"""Says whether a picture is its source with one named change, and nothing else changed.

Sees what `bench.judge` sees, and beside it the pixels that no change may touch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from bench.judge import Judge, Seen, SeenObject, is_related
from kit.checkpoint.edits import Edit
from kit.checkpoint.evaluation import JUDGED_EDITS
from kit.checkpoint.palette import lab
from kit.checkpoint.scenes import Scene, SceneObject, canvas_unit, relation

MAX_DISTANCE = 0.06
"""How far from its place an object may be, as a share of the canvas unit."""

MAX_SIZE_RATIO = 1.22
"""How much larger or smaller an object may be than it was; the least change asked for is 1.5."""

MAX_REST = 3.0
"""Mean ΔE between picture and source where nothing was to change."""

_MARGIN = 0.05
"""Left out around what changes, for shadows and soft edges, as a share of the shorter side."""


@dataclass(frozen=True)
class EditVerdict:
    """What became of one instruction."""

    changed: bool
    """What is named changed as it is named."""

    kept: bool
    """Objects, colours, places, sizes, background and pixels that are not named stayed."""

    @property
    def right(self) -> bool:
        return self.changed and self.kept


@dataclass(frozen=True)
class _Match:
    """An object of the target beside the one that was seen in its place; None: there is none."""

    wanted: SceneObject
    seen: SeenObject | None
    at: tuple[float, float]
    """Middle (x, y) of the wanted one, in canvas units."""

    size: float
    """Longer side of the wanted one's box, in canvas units."""

    distance: float = 0.0
    """Between the two middles, in canvas units."""

    @property
    def kind(self) -> bool:
        return self.seen is not None and self.seen.kind == self.wanted.kind

    @property
    def colour(self) -> bool:
        return self.seen is not None and self.seen.colour == self.wanted.colour

    @property
    def place(self) -> bool:
        return self.seen is not None and self.distance <= MAX_DISTANCE

    @property
    def as_large(self) -> bool:
        if self.seen is None:
            return False
        return 1 / MAX_SIZE_RATIO <= self.seen.size / self.size <= MAX_SIZE_RATIO


def judge_edit(
    judge: Judge, picture: NDArray[np.uint8], source: NDArray[np.uint8], edit: Edit
) -> EditVerdict:
    """Judge a picture [height, width, 3] that was made of `source` by one of JUDGED_EDITS."""
    assert edit.kind in JUDGED_EDITS, f"{edit.kind} is not judged"
    verdict = compare_edit(judge.look(picture), edit)
    if edit.kind == "background":
        return verdict
    return EditVerdict(
        verdict.changed, verdict.kept and rest_distance(picture, source, edit) <= MAX_REST
    )


def compare_edit(seen: Seen, edit: Edit) -> EditVerdict:
    """Compare what a picture shows with an edit's target, without its pixels."""
    target, kind = edit.target, edit.kind
    matches = _match(seen, target)
    complete = len(seen.objects) == len(target.objects)
    here = () if kind == "remove" else edit.changed
    changed = [matches[at] for at in here]
    others = [match for at, match in enumerate(matches) if at not in here]
    background = seen.background == target.background
    kept = all(m.kind and m.colour and m.place and m.as_large for m in others)
    if kind == "background":
        return EditVerdict(background, kept and complete)
    kept = kept and background
    if kind == "remove":
        return EditVerdict(complete, kept)
    if kind == "add":
        is_there = complete and all(m.kind and m.colour for m in changed)
        return EditVerdict(is_there and _is_beside(seen, matches, edit), kept)
    kept = kept and complete and all(m.place for m in changed)
    if kind == "colour":
        done, same = all(m.colour for m in changed), all(m.kind and m.as_large for m in changed)
    elif kind == "replace":
        done, same = all(m.kind for m in changed), all(m.colour and m.as_large for m in changed)
    else:
        done, same = all(m.as_large for m in changed), all(m.kind and m.colour for m in changed)
    return EditVerdict(done, kept and same)


def rest_distance(picture: NDArray[np.uint8], source: NDArray[np.uint8], edit: Edit) -> float:
    """Return the mean ΔE of two pictures away from the objects that change."""
    rest = np.ones(picture.shape[:2], dtype=bool)
    margin = math.ceil(_MARGIN * min(picture.shape[:2]))
    in_source = () if edit.kind == "add" else edit.changed
    in_target = () if edit.kind == "remove" else edit.changed
    changing = [edit.source.objects[at] for at in in_source]
    changing += [edit.target.objects[at] for at in in_target]
    for one in changing:
        top, left, bottom, right = one.box
        rest[max(0, top - margin) : bottom + margin, max(0, left - margin) : right + margin] = False
    difference = lab(picture[rest]) - lab(source[rest])
    return float(np.sqrt((difference**2).sum(-1)).mean())


def _match(seen: Seen, target: Scene) -> list[_Match]:
    """Give every object of the target the seen one that is nearest, all together."""
    unit = canvas_unit(target.height, target.width)
    wanted = []
    for one in target.objects:
        top, left, bottom, right = one.box
        at = ((left + right) / 2 / unit, (top + bottom) / 2 / unit)
        wanted.append(_Match(one, None, at, max(bottom - top, right - left) / unit))
    found = [
        (one, (one.x * target.width / unit, one.y * target.height / unit)) for one in seen.objects
    ]
    # Where fewer were seen, some places stay empty.
    found_or_none = [*found, *[None] * max(0, len(wanted) - len(found))]
    best, least = wanted, math.inf
    for order in permutations(found_or_none, len(wanted)):
        pairs = [
            _Match(w.wanted, None, w.at, w.size)
            if f is None
            else _Match(w.wanted, f[0], w.at, w.size, math.dist(w.at, f[1]))
            for w, f in zip(wanted, order, strict=True)
        ]
        total = sum(pair.distance for pair in pairs)
        if total < least:
            best, least = pairs, total
    return best


def _is_beside(seen: Seen, matches: list[_Match], edit: Edit) -> bool:
    """Whether a new object is on the named side of the one that it was added to."""
    (new,) = edit.changed
    assert edit.anchor is not None, "a new object has a place"
    anchor = edit.anchor + (edit.anchor >= new)  # its index in the target
    first, second = matches[new].seen, matches[anchor].seen
    word = relation(matches[new].wanted, matches[anchor].wanted)
    if first is None or second is None or word is None:
        return False
    return is_related(seen, first, word, second)
