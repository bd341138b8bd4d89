"""What an edit changes, and that it changes nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from kit.checkpoint.edits import EDIT_KINDS, LOWEST_BASE, Edit, random_edit
from kit.checkpoint.evaluation import JUDGED_EDITS, evaluation_edits
from kit.checkpoint.grounds import GROUNDS, shifts
from kit.checkpoint.preset import NAMED_SIZES, SQUARE
from kit.checkpoint.render import render
from kit.checkpoint.scenes import SIZES, SceneObject, colours_on, relation
from kit.errors import ConfigError

MAY_CHANGE = {
    "colour": {"colour"},
    "replace": {"kind", "y"},
    "size": {"size", "side", "y"},
    "material": {"material"},
}
"""Fields of the objects that are named; y, since an object on a surface keeps its lower edge."""


def edits(
    kind: str | None, num: int, *, size: tuple[int, int] = SQUARE, held_out: bool = False
) -> list[Edit]:
    draw = np.random.default_rng(5)
    return [random_edit(draw, size=size, kind=kind, held_out=held_out) for _ in range(num)]


def differing(a: SceneObject, b: SceneObject) -> set[str]:
    return {f.name for f in fields(a) if getattr(a, f.name) != getattr(b, f.name)}


@pytest.mark.parametrize("kind", MAY_CHANGE)
def test_only_what_is_named_changes(kind: str) -> None:
    for edit in edits(kind, 60):
        assert edit.changed
        assert edit.target == replace(edit.source, objects=edit.target.objects)
        for at, (before, after) in enumerate(
            zip(edit.source.objects, edit.target.objects, strict=True)
        ):
            changed = differing(before, after)
            if at not in edit.changed:
                assert not changed
                continue
            assert changed - {"y"}
            assert changed <= MAY_CHANGE[kind]
            if GROUNDS[edit.source.background].stands:
                assert before.box[2] == after.box[2]
            else:
                assert before.y == after.y


def test_another_background_keeps_the_objects() -> None:
    num_fallen = 0
    for edit in edits("background", 150):
        assert edit.source.background != edit.target.background
        assert edit.target.shift == 0 or shifts(edit.target.background)
        for before, after in zip(edit.source.objects, edit.target.objects, strict=True):
            changed = differing(before, after)
            assert changed <= {"y"}
            if changed:
                num_fallen += 1
                assert GROUNDS[edit.target.background].stands
                assert after.box[2] == round(LOWEST_BASE * edit.target.height) > before.box[2]
            assert after.colour in colours_on(edit.target.background)
    assert num_fallen > 5


def test_one_more_and_one_less() -> None:
    for kind in ("add", "remove"):
        for edit in edits(kind, 40):
            less, more = edit.source, edit.target
            if kind == "remove":
                less, more = more, less
            (at,) = edit.changed
            assert less.objects == more.objects[:at] + more.objects[at + 1 :]
            assert less == replace(more, objects=less.objects)
            if kind == "add":
                assert edit.anchor is not None
                assert relation(more.objects[at], less.objects[edit.anchor]) is not None


@pytest.mark.parametrize("size", [SQUARE, *NAMED_SIZES])
def test_nothing_held_out_is_trained_on_and_pictures_are_whole(size: tuple[int, int]) -> None:
    kinds: Counter[str] = Counter()
    for edit in edits(None, 80, size=size):
        kinds[edit.kind] += 1
        assert not edit.source.held_out
        assert not edit.target.held_out
        assert render(edit.target).shape == (*size, 3)
        for one in edit.target.objects:
            top, left, bottom, right = one.box
            assert min(top, left, size[0] - bottom, size[1] - right) >= 0
    assert set(kinds) >= {"colour", "background", "replace"}


@pytest.mark.parametrize("kind", EDIT_KINDS)
def test_a_held_out_edit_leads_to_what_was_never_trained_on(kind: str) -> None:
    assert all(edit.target.held_out for edit in edits(kind, 20, held_out=True))


def test_a_group_changes_as_a_whole() -> None:
    groups = [e for e in edits("colour", 120) if e.source.is_group]
    assert groups
    assert all(len(e.changed) == len(e.source.objects) and e.target.is_group for e in groups)


def test_objects_are_told_apart_after_an_edit() -> None:
    for edit in [*edits("colour", 120), *edits("replace", 120)]:
        looks = {(one.kind, one.colour) for one in edit.target.objects}
        assert edit.source.is_group or len(looks) == len(edit.target.objects)


def test_a_size_changes_as_much_as_its_words_say() -> None:
    for edit in edits("size", 60):
        for at in edit.changed:
            before, after = edit.source.objects[at], edit.target.objects[at]
            wanted = SIZES[after.size] / SIZES[before.size]
            assert after.side / before.side == pytest.approx(wanted, rel=0.12)


def test_evaluation_edits_repeat_and_a_short_list_begins_a_long_one() -> None:
    for kind in JUDGED_EDITS:
        made = evaluation_edits(kind, 12, seed=1)
        assert made[:5] == evaluation_edits(kind, 5, seed=1)
        assert made != evaluation_edits(kind, 12, seed=2)
        assert all(one.edit.target.held_out and one.edit.kind == kind for one in made)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="kind"):
        evaluation_edits("material", 1, seed=0)
    with pytest.raises(ConfigError, match="size"):
        evaluation_edits("colour", 1, seed=0, size=(100, 256))
    with pytest.raises(ConfigError, match="size"):
        random_edit(np.random.default_rng(0), size=(100, 256))


def test_edits_compare_as_values() -> None:
    (one,) = edits("colour", 1)
    assert one == Edit(one.kind, one.source, one.target, one.changed)
