"""What instructions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kit.checkpoint.captions import Style
from kit.checkpoint.edits import EDIT_KINDS, Edit, random_edit
from kit.checkpoint.instructions import (
    evaluation_style,
    instruct,
    training_instruction,
)
from kit.checkpoint.lexicon import BACKGROUND_WORDS, COLOUR_WORDS, KIND_WORDS, Words
from kit.checkpoint.scenes import Scene, SceneObject

VASE = SceneObject("vase", "red", "ceramic", "medium", 100, 70, 150)
CUP = SceneObject("cup", "blue", "matte", "medium", 100, 190, 150)
BOTH = Scene(256, 256, "table", 3, (VASE, CUP))
ALONE = replace(BOTH, objects=(VASE,))
PLAIN = Style(colour=False)


def changed(scene: Scene, change: str, at: int, **fields: Any) -> Edit:
    objects = list(scene.objects)
    objects[at] = replace(objects[at], **fields)
    return Edit(change, scene, replace(scene, objects=tuple(objects)), (at,))


CASES = [
    (changed(BOTH, "colour", 0, colour="blue"), {"Make the vase blue", "Paint the vase blue"}),
    (
        changed(BOTH, "replace", 1, kind="apple"),
        {"Turn the cup into an apple", "Replace the cup with an apple"},
    ),
    (
        Edit("background", ALONE, replace(ALONE, background="night")),
        {
            "Put the vase at night",
            "Place the vase at night",
            "Put the vase in the night sky",
            "Place the vase in the night sky",
            "Change the background to night",
            "Make the background night",
            "Change the background to the night sky",
            "Make the background the night sky",
        },
    ),
    (
        Edit("background", BOTH, replace(BOTH, background="white")),
        {
            "Put the vase and the cup on a white background",
            "Place the vase and the cup on a white background",
            "Change the background to white",
            "Make the background white",
        },
    ),
    (
        changed(BOTH, "size", 0, size="large"),
        {
            "Make the vase bigger",
            "Make the vase larger",
            "Make the vase large",
            "Make the vase big",
            "Let the vase be large",
            "Let the vase be big",
        },
    ),
    (Edit("remove", BOTH, ALONE, (1,)), {"Remove the cup", "Delete the cup"}),
    (
        Edit("add", ALONE, BOTH, (1,), 0),
        {
            f"{verb} a blue cup {where} the vase"
            for verb in ("Add", "Put")
            for where in ("to the right of", "right of")
        },
    ),
]


@pytest.mark.parametrize(("edit", "wanted"), CASES)
def test_usual_ways(edit: Edit, wanted: set[str]) -> None:
    said = {instruct(edit, PLAIN, np.random.default_rng(seed)) for seed in range(150)}
    assert said == wanted


def test_equal_kinds_are_told_apart_by_colour() -> None:
    cups = replace(BOTH, objects=(replace(CUP, x=70, colour="red"), CUP))
    edit = changed(cups, "colour", 1, colour="green")
    said = {instruct(edit, PLAIN, np.random.default_rng(seed)) for seed in range(20)}
    assert said == {"Make the blue cup green", "Paint the blue cup green"}


def test_a_group_is_named_as_one() -> None:
    stars = [SceneObject("star", "red", "matte", "small", 60, x, 128) for x in (60, 190)]
    scene = replace(ALONE, objects=tuple(stars))
    target = replace(scene, objects=tuple(replace(o, kind="butterfly") for o in stars))
    edit = Edit("replace", scene, target, (0, 1))
    said = {instruct(edit, PLAIN, np.random.default_rng(seed)) for seed in range(60)}
    assert "Turn the stars into butterflies" in said
    assert "Turn the two stars into butterflies" in said
    assert all("stars" in text for text in said)


def test_turns_bring_many_ways() -> None:
    edit = changed(ALONE, "colour", 0, colour="green")
    style = Style(colour=True, turns=True)
    said = {instruct(edit, style, np.random.default_rng(seed)) for seed in range(400)}
    assert len(said) > 30
    assert any("it" in text.split() for text in said)
    assert all("green" in text for text in said)


def names_one_of(text: str, words: Words) -> bool:
    return any(word.lower() in text.lower() for word in words.plain + words.others)


@pytest.mark.parametrize("kind", EDIT_KINDS)
def test_evaluation_names_what_is_to_come(kind: str) -> None:
    draw = np.random.default_rng(7)
    for _ in range(60):
        edit = random_edit(draw, size=(256, 256), kind=kind)
        text = instruct(edit, evaluation_style(draw), draw)
        new = edit.target.objects[edit.changed[0]] if kind not in ("background", "remove") else None
        if kind in ("colour", "add"):
            assert new is not None
            assert names_one_of(text, COLOUR_WORDS[new.colour])
        if kind in ("replace", "add"):
            assert new is not None
            stems = tuple(w[:-1] for w in sum(KIND_WORDS[new.kind], ()))  # butterfly, butterflies
            assert names_one_of(text, Words(stems, ()))
        if kind == "background":
            ways = sum(BACKGROUND_WORDS[edit.target.background], ())
            nouns = [noun.split(" ")[-1] for _, noun in ways]
            colours = [noun.split(" ")[-2] for _, noun in ways if " " in noun]
            assert names_one_of(text, Words(tuple(nouns + colours), ()))


def test_training_varies_case_ending_and_words() -> None:
    draw = np.random.default_rng(8)
    texts = [training_instruction(random_edit(draw, size=(256, 256)), draw) for _ in range(400)]
    assert len(set(texts)) > 380
    assert any(text.isupper() for text in texts)
    assert any(text[0].islower() for text in texts)
    assert any(text.endswith("please") for text in texts)
    assert not any("{" in text or "  " in text or text != text.strip() for text in texts)
