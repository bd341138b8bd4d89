from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.checkpoint.grounds import GROUNDS, MIN_CONTRAST, NUM_SHIFTS, contrast
from kit.checkpoint.palette import COLOURS
from kit.checkpoint.scenes import (
    ARRANGEMENTS,
    EDGE_MARGIN,
    MATERIALS,
    POSITIONS,
    RELATIONS,
    SIZES,
    Scene,
    SceneObject,
    check_canvas,
    colours_on,
    is_held_out,
    random_scene,
    relation,
)
from kit.checkpoint.shapes import KINDS
from kit.errors import ConfigError
from kit.tokenizer.buckets import resolution_buckets

BUCKETS = [(b.height, b.width) for b in resolution_buckets(256, extended=False)]

scenes = st.builds(
    lambda seed, size, arrangement, held_out: random_scene(
        np.random.default_rng(seed), size=size, arrangement=arrangement, held_out=held_out
    ),
    st.integers(0, 2**32 - 1),
    st.sampled_from([(256, 256), (192, 320), (320, 192), (128, 512), (512, 128), (144, 368)]),
    st.sampled_from([None, *ARRANGEMENTS]),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(scenes)
def test_objects_are_inside_apart_and_visible(scene: Scene) -> None:
    margin = round(EDGE_MARGIN * min(scene.height, scene.width)) - 1
    boxes = [one.box for one in scene.objects]
    for one, (top, left, bottom, right) in zip(scene.objects, boxes, strict=True):
        assert margin <= top < bottom <= scene.height - margin
        assert margin <= left < right <= scene.width - margin
        assert contrast(one.colour, scene.background) >= MIN_CONTRAST
    for a, b in itertools.combinations(boxes, 2):
        # Apart along one of the axes, as far as the eye of a judge needs.
        gap = max(b[0] - a[2], a[0] - b[2], b[1] - a[3], a[1] - b[3])
        assert gap >= 0.06 * min(scene.height, scene.width)
    assert 0 <= scene.shift < NUM_SHIFTS


@settings(max_examples=150, deadline=None)
@given(scenes)
def test_words_for_places_are_true(scene: Scene) -> None:
    for a, b in itertools.pairwise(scene.objects):
        word = relation(a, b)
        assert word in ("left of", "above")
        assert relation(b, a) == RELATIONS[word]
    if scene.position is None:
        return
    (one,) = scene.objects
    side, height = POSITIONS[scene.position]
    x, y = one.x / scene.width, one.y / scene.height
    assert {-1: x < 0.4, 0: 0.4 < x < 0.6, 1: x > 0.6}[side]
    if GROUNDS[scene.background].stands:
        assert height == 0
    else:
        assert {-1: y < 0.4, 0: 0.4 < y < 0.6, 1: y > 0.6}[height]


def test_the_same_seed_makes_the_same_scene() -> None:
    made = [random_scene(np.random.default_rng(7), size=(256, 256)) for _ in range(2)]

    assert made[0] == made[1]


def test_training_never_sees_a_held_out_combination() -> None:
    draw = np.random.default_rng(0)
    for at in range(2000):
        scene = random_scene(draw, size=BUCKETS[at % len(BUCKETS)])
        for one in scene.objects:
            assert not is_held_out(one.kind, one.colour, scene.background)
        assert not scene.held_out


def test_held_out_scenes_each_show_a_held_out_combination() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        assert random_scene(draw, size=(256, 256), held_out=True).held_out


def test_held_out_combinations_are_fixed_and_spread() -> None:
    triples = [(k, c, g) for k in KINDS for g in GROUNDS for c in colours_on(g)]
    held_out = [triple for triple in triples if is_held_out(*triple)]

    assert 0.07 < len(held_out) / len(triples) < 0.11
    assert is_held_out("vase", "turquoise", "table")
    assert not is_held_out("vase", "red", "table")
    for at, names in enumerate((set(KINDS), set(COLOURS), set(GROUNDS))):
        assert {triple[at] for triple in held_out} == names
    for kind, colour in itertools.product(KINDS, COLOURS):
        trained = [
            g for g in GROUNDS if colour in colours_on(g) if not is_held_out(kind, colour, g)
        ]
        assert len(trained) >= 6


def test_everything_is_drawn_sometimes() -> None:
    draw = np.random.default_rng(1)
    made = [random_scene(draw, size=(256, 256)) for _ in range(3000)]
    objects = [one for scene in made for one in scene.objects]

    assert {one.kind for one in objects} == set(KINDS)
    assert {one.colour for one in objects} == set(COLOURS)
    assert {one.material for one in objects} == set(MATERIALS)
    assert {one.size for one in objects} == set(SIZES)
    assert {scene.background for scene in made} == set(GROUNDS)
    assert {scene.position for scene in made} == {None, *POSITIONS}
    assert {len(scene.objects) for scene in made} == {1, 2, 3}
    assert 0.5 < sum(len(scene.objects) == 1 for scene in made) / len(made) < 0.65


def test_a_group_is_of_equal_objects_and_others_are_not() -> None:
    draw = np.random.default_rng(2)
    for arrangement in ARRANGEMENTS:
        for _ in range(50):
            scene = random_scene(draw, size=(256, 256), arrangement=arrangement)
            assert scene.is_group == (arrangement == "group")
            if scene.is_group:
                assert len({(o.kind, o.colour, o.material, o.side) for o in scene.objects}) == 1
            else:
                looks = [(o.kind, o.colour) for o in scene.objects]
                assert len(set(looks)) == len(looks)


def test_relation_has_no_word_where_objects_overlap() -> None:
    a = SceneObject("circle", "red", "matte", "small", 64, 100, 100)
    b = SceneObject("star", "blue", "matte", "small", 64, 120, 110)

    assert relation(a, b) is None


@pytest.mark.parametrize("size", BUCKETS)
def test_every_bucket_is_a_canvas(size: tuple[int, int]) -> None:
    check_canvas(*size)


@pytest.mark.parametrize("size", [(250, 256), (112, 256), (128, 528), (0, 0)])
def test_other_canvases_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="size"):
        check_canvas(*size)
