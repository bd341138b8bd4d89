from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.judge import Judge, Seen, SeenObject, Verdict, compare
from bench.shape_classifier import ShapeNet
from kit.checkpoint.captions import Facts, ObjectFacts
from kit.checkpoint.evaluation import FAMILIES, evaluation_captions
from kit.checkpoint.render import render
from kit.checkpoint.scenes import Scene, canvas_unit

RED_VASE = ObjectFacts("vase", "red")
BLUE_CAT = ObjectFacts("cat", "blue")
PAIR = Facts((RED_VASE, BLUE_CAT), "table", ((0, "left of", 1),))


def seen_object(kind: str | None, colour: str, x: float = 0.5, y: float = 0.5) -> SeenObject:
    return SeenObject(kind, colour, x, y, 0.4, 0.99)


def seen(*objects: SeenObject, background: str | None = "table") -> Seen:
    return Seen(256, 256, background, objects)


def as_seen(scene: Scene) -> Seen:
    """What a judge without faults sees in a drawn scene."""
    unit = canvas_unit(scene.height, scene.width)
    return Seen(
        scene.height,
        scene.width,
        scene.background,
        tuple(
            SeenObject(o.kind, o.colour, o.x / scene.width, o.y / scene.height, o.side / unit, 1.0)
            for o in scene.objects
        ),
    )


@pytest.mark.parametrize("size", [(256, 256), (192, 320), (352, 160)])
@pytest.mark.parametrize("family", FAMILIES)
def test_captions_agree_with_their_scenes_and_with_no_other(
    family: str, size: tuple[int, int]
) -> None:
    made = evaluation_captions(family, 30, seed=2, size=size)
    num_wrong = 0
    for at, caption in enumerate(made):
        verdict = compare(as_seen(caption.scene), caption.facts)
        assert verdict.right, caption
        named = caption.facts
        assert (verdict.background is None) == (named.background is None)
        assert (verdict.relation is None) == (not named.relations)
        assert (verdict.count is None) == (named.count is None)
        assert (verdict.position is None) == (named.position is None)
        num_wrong += not compare(as_seen(made[at - 1].scene), named).right

    assert num_wrong >= 27


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (seen(seen_object("vase", "red", 0.2), seen_object("cat", "blue", 0.8)), set()),
        (seen(seen_object("cat", "blue", 0.2), seen_object("vase", "red", 0.8)), {"relation"}),
        (
            seen(seen_object("vase", "red", 0.5, 0.2), seen_object("cat", "blue", 0.5, 0.8)),
            {"relation"},
        ),
        (seen(seen_object("vase", "blue", 0.2), seen_object("cat", "blue", 0.8)), {"colour"}),
        (
            seen(seen_object("vase", "red", 0.2), seen_object("cup", "blue", 0.8)),
            {"object", "relation"},
        ),
        (
            seen(seen_object("vase", "red", 0.2), seen_object(None, "blue", 0.8)),
            {"object", "relation"},
        ),
        (seen(seen_object("vase", "red", 0.2)), {"object", "colour", "relation"}),
        (
            seen(
                seen_object("vase", "red", 0.2),
                seen_object("cat", "blue", 0.8),
                seen_object("cup", "red", 0.5),
            ),
            {"object"},
        ),
        (
            seen(
                seen_object("vase", "red", 0.2), seen_object("cat", "blue", 0.8), background="sky"
            ),
            {"background"},
        ),
        (seen(background=None), {"object", "colour", "background", "relation"}),
    ],
)
def test_each_fault_is_told(shown: Seen, wrong: set[str]) -> None:
    verdict = compare(shown, PAIR)

    aspects = ("object", "colour", "background", "relation", "count", "position")
    assert {name for name in aspects if getattr(verdict, name) is False} == wrong
    assert verdict.right == (not wrong)
    assert verdict.count is verdict.position is None


def test_what_is_not_named_is_not_judged() -> None:
    verdict = compare(seen(seen_object("vase", "green")), Facts((ObjectFacts("vase", None),)))

    assert verdict == Verdict(True, None, None, None, None, None)


@pytest.mark.parametrize(("num", "right"), [(2, False), (3, True)])
def test_count(num: int, right: bool) -> None:
    facts = Facts((ObjectFacts("star", "red"),) * 3, "sky", count=3)
    shown = [seen_object("star", "red", x) for x in (0.2, 0.5, 0.8)][:num]

    verdict = compare(seen(*shown, background="sky"), facts)
    assert verdict.count is right
    assert verdict.right is right
    other = compare(seen(*shown[:1], seen_object("moon", "red"), background="sky"), facts)
    assert other.count is False


@pytest.mark.parametrize(
    ("position", "x", "y", "right"),
    [
        ("left", 0.3, 0.5, True),
        ("left", 0.3, 0.8, True),
        ("left", 0.5, 0.5, False),
        ("right", 0.7, 0.5, True),
        ("right", 0.3, 0.5, False),
        ("top", 0.5, 0.2, True),
        ("top", 0.5, 0.5, False),
        ("bottom right", 0.8, 0.8, True),
        ("bottom right", 0.8, 0.2, False),
        ("centre", 0.5, 0.55, True),
        ("centre", 0.2, 0.5, False),
        ("centre", 0.5, 0.8, False),
    ],
)
def test_position(position: str, x: float, y: float, right: bool) -> None:
    facts = Facts((RED_VASE,), position=position)

    assert compare(seen(seen_object("vase", "red", x, y)), facts).position is right


@pytest.mark.parametrize(
    ("word", "a", "b"),
    [
        ("left of", (0.2, 0.5), (0.8, 0.6)),
        ("right of", (0.8, 0.5), (0.2, 0.6)),
        ("above", (0.5, 0.2), (0.6, 0.8)),
        ("below", (0.5, 0.8), (0.6, 0.2)),
    ],
)
def test_relations(word: str, a: tuple[float, float], b: tuple[float, float]) -> None:
    facts = replace(PAIR, relations=((0, word, 1),))

    def verdict(a: tuple[float, float], b: tuple[float, float]) -> bool | None:
        shown = seen(seen_object("vase", "red", *a), seen_object("cat", "blue", *b))
        return compare(shown, facts).relation

    assert verdict(a, b) is True
    assert verdict(b, a) is False
    assert verdict(a, a) is False


def test_equal_kinds_are_matched_by_colour() -> None:
    facts = Facts(
        (ObjectFacts("cat", "red"), ObjectFacts("cat", "blue")), relations=((0, "right of", 1),)
    )
    shown = seen(seen_object("cat", "blue", 0.2), seen_object("cat", "red", 0.8))

    assert compare(shown, facts).right


def test_a_picture_without_a_known_background_shows_nothing() -> None:
    judge = Judge(ShapeNet().eval())
    picture = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)

    assert judge.look(picture) == Seen(256, 256, None, ())
    assert not judge.judge(picture, PAIR).right


def test_an_untrained_network_is_right_about_everything_but_names() -> None:
    judge = Judge(ShapeNet().eval())
    for caption in evaluation_captions("pair", 10, seed=4):
        found = judge.look(render(caption.scene))
        expected = as_seen(caption.scene)
        assert found.background == expected.background
        assert sorted(o.colour for o in found.objects) == sorted(o.colour for o in expected.objects)
        for one in found.objects:
            near = min(expected.objects, key=lambda o: abs(o.x - one.x) + abs(o.y - one.y))
            assert abs(near.x - one.x) < 0.05
            assert abs(near.y - one.y) < 0.12
