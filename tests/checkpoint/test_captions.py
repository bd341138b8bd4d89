from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.checkpoint.captions import (
    CASES,
    Style,
    describe,
    training_caption,
    training_captions,
)
from kit.checkpoint.grounds import GROUNDS
from kit.checkpoint.lexicon import (
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    FILLERS,
    KIND_WORDS,
    MATERIAL_WORDS,
    PLURALS,
    POSITION_WORDS,
    SIZE_WORDS,
    Words,
)
from kit.checkpoint.palette import COLOURS
from kit.checkpoint.scenes import (
    ARRANGEMENTS,
    MATERIALS,
    POSITIONS,
    SIZES,
    Scene,
    SceneObject,
    is_held_out,
    random_scene,
    relation,
)
from kit.checkpoint.shapes import KINDS

VASE = Scene(256, 256, "table", 0, (SceneObject("vase", "red", "ceramic", "large", 152, 128, 130),))
STARS = Scene(
    256,
    256,
    "night",
    0,
    tuple(SceneObject("star", "yellow", "matte", "small", 64, x, 128) for x in (50, 128, 206)),
)

drawn = st.builds(
    lambda seed, arrangement: (
        random_scene(np.random.default_rng(seed), size=(256, 256), arrangement=arrangement),
        np.random.default_rng(seed + 1),
    ),
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(ARRANGEMENTS)),
)
styles = st.builds(
    Style,
    colour=st.booleans(),
    background=st.booleans(),
    material=st.booleans(),
    size=st.booleans(),
    position=st.booleans(),
    relation=st.booleans(),
    synonyms=st.sampled_from([0.0, 0.5, 1.0]),
    case=st.sampled_from(CASES),
    turns=st.booleans(),
)


def says(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of the words stands in the text, singular or plural."""
    return any(re.search(rf"\b{re.escape(w)}(s|es)?\b", text.lower()) for w in words)


def ways(words: Words) -> tuple[str, ...]:
    singular = words.plain + words.others
    irregular = [PLURALS[word] for word in singular if word in PLURALS]
    return (*singular, *irregular, *(w[:-1] + "ies" for w in singular if w.endswith("y")))


def places(background: str) -> tuple[str, ...]:
    words = BACKGROUND_WORDS[background]
    return tuple(noun for _, noun in words.plain + words.others)


@settings(max_examples=150, deadline=None)
@given(drawn, styles)
def test_facts_are_true_and_said(made: tuple[Scene, np.random.Generator], style: Style) -> None:
    scene, draw = made
    caption = describe(scene, style, draw)
    text, facts = caption.text, caption.facts

    assert Counter(f.kind for f in facts.objects) == Counter(o.kind for o in scene.objects)
    looks = [(o.kind, o.colour) for o in scene.objects]
    for fact in facts.objects:
        assert fact.kind is not None
        assert says(text, ways(KIND_WORDS[fact.kind]))
        assert (fact.colour is not None) == style.colour
        if fact.colour:
            assert (fact.kind, fact.colour) in looks
            assert says(text, ways(COLOUR_WORDS[fact.colour]))
    assert facts.background == (scene.background if style.background else None)
    assert says(text, places(scene.background)) or not style.background
    assert facts.count == (len(scene.objects) if scene.is_group else None)
    assert facts.position in (None, scene.position)
    if facts.position:
        words = POSITION_WORDS[facts.position]
        assert says(text, words.plain + words.others)


@settings(max_examples=150, deadline=None)
@given(drawn, styles)
def test_relations_hold_between_the_named_objects(
    made: tuple[Scene, np.random.Generator], style: Style
) -> None:
    scene, draw = made
    facts = describe(scene, replace(style, colour=True), draw).facts
    by_look: dict[tuple[str | None, str | None], SceneObject] = {
        (one.kind, one.colour): one for one in scene.objects
    }
    for i, word, j in facts.relations:
        first, second = (facts.objects[at] for at in (i, j))
        a, b = by_look[first.kind, first.colour], by_look[second.kind, second.colour]
        assert relation(a, b) == word
    if not style.relation or len(scene.objects) == 1 or scene.is_group:
        assert not facts.relations
    else:
        assert len(facts.relations) == len(scene.objects) - 1


def test_what_a_style_leaves_out_is_not_said() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        scene = random_scene(draw, size=(256, 256), arrangement="single")
        style = Style(colour=False, background=False, position=False, synonyms=0.5, turns=True)
        text = describe(scene, style, draw).text
        for colour, words in COLOUR_WORDS.items():
            assert not says(text, words.plain), (text, colour)
        assert not says(text, ("background", "table", "sky", "sea", "beach"))


def test_plain_style_is_plain_english() -> None:
    draw = np.random.default_rng(0)
    texts = {describe(VASE, Style(material=True, position=False), draw).text for _ in range(20)}

    assert texts == {"A red ceramic vase on a wooden table", "A red ceramic vase on a table"}
    assert {describe(STARS, Style(), draw).text for _ in range(20)} == {
        "Three yellow stars at night",
        "Three yellow stars in the night sky",
    }


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (Style(background=False, case="upper"), "A RED VASE IN THE "),
        (Style(background=False, position=False, colour=False, articles=False), "Vase"),
        (
            Style(background=False, position=False, case="title", size=True),
            "A (Large|Big) Red Vase",
        ),
        (Style(background=False, position=False, ending="!", case="lower"), "a red vase!"),
        (Style(kind=False, background=False, position=False), "(A red thing|Something red)"),
    ],
)
def test_style(style: Style, expected: str) -> None:
    assert re.match(expected, describe(VASE, style, np.random.default_rng(1)).text)


def test_extra_words_are_added() -> None:
    draw = np.random.default_rng(0)
    style = Style(num_extra_words=3, position=False, background=False)
    words = [len(describe(VASE, style, draw).text.split()) for _ in range(20)]

    assert words == [6] * 20


def test_training_captions_vary_and_repeat_by_seed() -> None:
    texts = list(training_captions(2000, seed=5))

    assert texts[:100] == list(training_captions(100, seed=5))
    assert len(set(texts)) > 1900
    assert 0.1 < sum(text.isupper() for text in texts) / len(texts) < 0.3
    assert any(len(text.split()) == 1 for text in texts)
    assert all(text.strip() == text and "  " not in text for text in texts)
    assert max(len(text) for text in texts) < 250


def test_training_captions_never_name_a_held_out_combination() -> None:
    draw = np.random.default_rng(9)
    for _ in range(2000):
        facts = training_caption(random_scene(draw, size=(256, 256)), draw).facts
        for fact in facts.objects:
            if fact.kind and fact.colour and facts.background:
                assert not is_held_out(fact.kind, fact.colour, facts.background)


def test_extra_words_are_none_of_the_language() -> None:
    known = set()
    for table in (KIND_WORDS, COLOUR_WORDS, MATERIAL_WORDS, SIZE_WORDS):
        for words in table.values():
            known |= {part for way in words.plain + words.others for part in way.split()}

    assert not known & set(FILLERS)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (KIND_WORDS, KINDS),
        (COLOUR_WORDS, COLOURS),
        (MATERIAL_WORDS, MATERIALS),
        (SIZE_WORDS, SIZES),
        (POSITION_WORDS, POSITIONS),
        (BACKGROUND_WORDS, GROUNDS),
    ],
)
def test_every_name_has_words_that_mean_nothing_else(
    table: dict[str, Words], names: Iterable[str]
) -> None:
    assert set(table) == set(names)
    ways = [way for words in table.values() for way in words.plain + words.others]
    assert len(set(ways)) == len(ways)
