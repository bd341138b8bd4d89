"""The judge of edits, on drawn pictures that are right and wrong in known ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.edit_judge import EditVerdict, judge_edit, rest_distance
from bench.judge import Judge
from bench.judge_training import SHIPPED_NET
from bench.shape_classifier import load_shape_net
from kit.checkpoint.edits import Edit
from kit.checkpoint.evaluation import JUDGED_EDITS, evaluation_edits
from kit.checkpoint.preset import SQUARE
from kit.checkpoint.render import render
from kit.checkpoint.scenes import Scene, SceneObject

SIZES = (SQUARE, (192, 320), (384, 128))

VASE = SceneObject("vase", "red", "ceramic", "medium", 100, 64, 150)
CUP = SceneObject("cup", "blue", "matte", "small", 64, 190, 170)
BOTH = Scene(256, 256, "table", 3, (VASE, CUP))
ALONE = replace(BOTH, objects=(VASE,))
GREEN, STAR = replace(VASE, colour="green"), replace(VASE, kind="star")
LARGE, SMALL = replace(CUP, side=100, y=150), replace(CUP, side=44)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(load_shape_net(SHIPPED_NET))


def to(change: str, *objects: SceneObject, at: int = 0, background: str = "table") -> Edit:
    target = replace(BOTH, objects=objects, background=background)
    return Edit(change, BOTH, target, () if change == "background" else (at,))


GREENER = to("colour", GREEN, CUP)
STARRED = to("replace", STAR, CUP)
LARGER = to("size", VASE, LARGE, at=1)
LAWN = to("background", VASE, CUP, background="grass")
LESS = Edit("remove", BOTH, ALONE, (1,))
MORE = Edit("add", ALONE, BOTH, (1,), 0)


def control(judge: Judge, num: int, size: tuple[int, int]) -> tuple[int, int, int]:
    """Number of edits, of targets judged right, of sources judged as changed."""
    found = [
        one.edit for kind in JUDGED_EDITS for one in evaluation_edits(kind, num, seed=5, size=size)
    ]
    right = unchanged = 0
    for edit in found:
        source = render(edit.source)
        right += judge_edit(judge, render(edit.target), source, edit).right
        unchanged += judge_edit(judge, source, source, edit).changed
    return len(found), right, unchanged


def test_drawn_targets_are_right_and_sources_are_no_edits(judge: Judge) -> None:
    num, right, unchanged = control(judge, 4, SQUARE)
    assert right >= num - 1
    assert unchanged == 0


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_the_controls_hold_over_many(size: tuple[int, int], judge: Judge) -> None:
    num, right, unchanged = control(judge, 40, size)
    assert right >= 0.98 * num
    assert unchanged <= 0.01 * num


@pytest.mark.parametrize("edit", [GREENER, STARRED, LARGER, LAWN, LESS, MORE], ids=lambda e: e.kind)
def test_each_kind(edit: Edit, judge: Judge) -> None:
    source, target = render(edit.source), render(edit.target)
    assert judge_edit(judge, target, source, edit) == EditVerdict(changed=True, kept=True)
    assert not judge_edit(judge, source, source, edit).changed


WRONG = [
    # What is drawn in place of the target; whether the change is there, whether the rest stayed.
    ("another colour", GREENER, (replace(VASE, colour="pink"), CUP), False, True),
    ("the other object's colour", GREENER, (VASE, replace(CUP, colour="green")), False, False),
    ("both colours", GREENER, (GREEN, replace(CUP, colour="green")), True, False),
    ("another kind as well", GREENER, (replace(GREEN, kind="star"), CUP), True, False),
    ("the other one moved", GREENER, (GREEN, replace(CUP, x=160)), True, False),
    ("the other one gone", GREENER, (GREEN,), True, False),
    ("another kind", STARRED, (replace(VASE, kind="heart"), CUP), False, True),
    ("another colour of it", STARRED, (replace(STAR, colour="green"), CUP), True, False),
    ("the other one larger", STARRED, (STAR, LARGE), True, False),
    ("smaller", LARGER, (VASE, replace(SMALL, y=150)), False, True),
    ("the other one's colour", LARGER, (GREEN, LARGE), True, False),
    ("the wrong one gone", LESS, (CUP,), True, False),
    ("both gone", LESS, (), False, False),
    ("none gone", LESS, (VASE, CUP), False, True),
    ("another one added", MORE, (VASE, replace(CUP, kind="star")), False, True),
    ("on the wrong side", MORE, (replace(VASE, x=190), replace(CUP, x=64)), False, False),
    ("two added", MORE, (VASE, replace(SMALL, x=140), replace(SMALL, x=215)), False, True),
]


@pytest.mark.parametrize(
    ("edit", "objects", "changed", "kept"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_wrong_pictures(
    edit: Edit, objects: tuple[SceneObject, ...], changed: bool, kept: bool, judge: Judge
) -> None:
    picture = render(replace(edit.target, objects=objects))
    verdict = judge_edit(judge, picture, render(edit.source), edit)
    assert verdict == EditVerdict(changed, kept)


@pytest.mark.parametrize(
    ("edit", "background", "changed"),
    [(GREENER, "sand", True), (LESS, "white", True), (LAWN, "sand", False)],
)
def test_a_wrong_background(edit: Edit, background: str, changed: bool, judge: Judge) -> None:
    picture = render(replace(edit.target, background=background))
    verdict = judge_edit(judge, picture, render(edit.source), edit)
    assert verdict == EditVerdict(changed, edit.kind == "background")


def test_pixels_that_were_not_to_change(judge: Judge) -> None:
    """A ground that only gets darker is the same by name, and no longer the same picture."""
    source, target = render(GREENER.source), render(GREENER.target)
    assert rest_distance(target, source, GREENER) == 0
    darker: NDArray[np.uint8] = (target * 0.9).astype(np.uint8)
    assert judge.look(darker).background == "table"
    assert judge_edit(judge, darker, source, GREENER) == EditVerdict(changed=True, kept=False)
    noisy = target + np.random.default_rng(0).normal(0, 2, target.shape)
    pixels: NDArray[np.uint8] = noisy.clip(0, 255).astype(np.uint8)
    assert judge_edit(judge, pixels, source, GREENER).right
