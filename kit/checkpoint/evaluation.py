"""Captions of held-out scenes with the facts that their pictures must show, and held-out edits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kit.checkpoint.captions import Facts, Style, describe
from kit.checkpoint.edits import EDIT_KINDS, Edit, random_edit
from kit.checkpoint.instructions import evaluation_style, instruct
from kit.checkpoint.scenes import Scene, check_canvas, random_scene
from kit.errors import ConfigError

_MAX_MISSES = 40
"""Captions in a row that were no new ones."""


@dataclass(frozen=True)
class EvaluationCaption:
    """One caption that is judged."""

    family: str
    """A key of FAMILIES."""
    text: str
    facts: Facts
    scene: Scene
    """What the caption was made from; drawn, it is a right picture. Always held out."""


@dataclass(frozen=True)
class EvaluationEdit:
    """One instruction that is judged; its target is always held out."""

    text: str
    edit: Edit


@dataclass(frozen=True)
class Family:
    """One kind of caption."""

    arrangements: tuple[str, ...]
    """Keys of ARRANGEMENTS, equally often."""
    style: Callable[[np.random.Generator], Style]


def evaluation_captions(
    family: str, num: int, *, seed: int, size: tuple[int, int] = (256, 256)
) -> list[EvaluationCaption]:
    """Make `num` captions of one of FAMILIES, no two with the same text.

    `size` (height, width) is that of the scenes. Raises ConfigError for an unknown family, a size
    that scenes cannot be made for, or more captions than the family has.
    """
    check_canvas(*size)
    if family not in FAMILIES:
        raise ConfigError("family", f"expected one of {', '.join(FAMILIES)}", value=family)
    made = FAMILIES[family]
    draw = np.random.default_rng((seed, list(FAMILIES).index(family), *size))
    found: dict[str, EvaluationCaption] = {}
    num_misses = 0
    while len(found) < num:
        arrangement = made.arrangements[int(draw.integers(len(made.arrangements)))]
        scene = random_scene(draw, size=size, arrangement=arrangement, held_out=True)
        caption = describe(scene, made.style(draw), draw)
        if caption.text in found or (family == "position" and caption.facts.position is None):
            num_misses += 1
            if num_misses == _MAX_MISSES:
                raise ConfigError(
                    "num", f"the {family} family has hardly more than {len(found)}", value=num
                )
            continue
        num_misses = 0
        case = EvaluationCaption(family, caption.text, caption.facts, scene)
        found[caption.text] = case
    return list(found.values())


def evaluation_edits(
    kind: str, num: int, *, seed: int, size: tuple[int, int] = (256, 256)
) -> list[EvaluationEdit]:
    """Make `num` edits of one of JUDGED_EDITS; a longer list begins with a shorter one.

    Raises ConfigError for another kind, or a size that scenes cannot be made for.
    """
    if kind not in JUDGED_EDITS:
        raise ConfigError("kind", f"expected one of {', '.join(JUDGED_EDITS)}", value=kind)
    check_canvas(*size)
    draw = np.random.default_rng((seed, list(EDIT_KINDS).index(kind), *size, len(FAMILIES)))
    found = []
    for _ in range(num):
        edit = random_edit(draw, size=size, kind=kind, held_out=True)
        found.append(EvaluationEdit(instruct(edit, evaluation_style(draw), draw), edit))
    return found


def _plain(draw: np.random.Generator) -> Style:
    return Style(position=False, material=bool(draw.random() < 0.3))


def _full(draw: np.random.Generator) -> Style:
    return Style(size=bool(draw.random() < 0.1), material=bool(draw.random() < 0.1))


def _partial(draw: np.random.Generator) -> Style:
    """Leaves out the background, the colour, or both."""
    colour, background = ((True, False), (False, True), (False, False))[draw.integers(3)]
    return Style(colour=colour, background=background, position=False)


FAMILIES: dict[str, Family] = {
    "plain": Family(("single",), _plain),
    "pair": Family(("pair",), _full),
    "triple": Family(("triple",), lambda _: Style()),
    "position": Family(("single",), _full),
    "count": Family(("group",), lambda _: Style()),
    "upper": Family(("single", "pair"), lambda _: Style(position=False, case="upper")),
    "synonym": Family(
        ("single", "pair"), lambda _: Style(position=False, synonyms=1.0, turns=True)
    ),
    "partial": Family(("single", "single", "group"), _partial),
}
"""Every kind of caption; each names the parts of the scene that its name says."""

JUDGED_EDITS = tuple(kind for kind in EDIT_KINDS if kind != "material")
"""A material changes an object's light only, which no judge of colours and outlines can tell."""
