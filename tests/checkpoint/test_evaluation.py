from __future__ import annotations

import pytest

from kit.checkpoint.captions import Facts
from kit.checkpoint.evaluation import FAMILIES, evaluation_captions
from kit.errors import ConfigError


@pytest.mark.parametrize("family", FAMILIES)
def test_captions_are_held_out_and_different(family: str) -> None:
    made = evaluation_captions(family, 30, seed=0)

    assert len({caption.text for caption in made}) == 30
    assert all(caption.scene.held_out and caption.family == family for caption in made)
    assert made == evaluation_captions(family, 30, seed=0)
    assert made != evaluation_captions(family, 30, seed=1)


def test_each_family_names_what_it_is_about() -> None:
    def facts(family: str) -> list[Facts]:
        return [caption.facts for caption in evaluation_captions(family, 40, seed=3)]

    assert all(f.background and f.objects[0].colour for f in facts("plain"))
    assert all(len(f.objects) == 2 and len(f.relations) == 1 for f in facts("pair"))
    assert all(len(f.objects) == 3 and len(f.relations) == 2 for f in facts("triple"))
    assert all(f.position for f in facts("position"))
    assert {f.count for f in facts("count")} == {2, 3}
    assert all(f.background is None or f.objects[0].colour is None for f in facts("partial"))
    assert {f.position for family in ("plain", "upper") for f in facts(family)} == {None}
    assert all(caption.text.isupper() for caption in evaluation_captions("upper", 20, seed=0))


def test_the_scene_is_made_for_the_size() -> None:
    (made,) = evaluation_captions("plain", 1, seed=0, size=(192, 320))

    assert (made.scene.height, made.scene.width) == (192, 320)


@pytest.mark.parametrize(
    ("family", "num", "size", "field"),
    [
        ("plane", 1, (256, 256), "family"),
        ("plain", 1, (100, 256), "size"),
        ("partial", 100_000, (256, 256), "num"),
    ],
)
def test_bad_input_is_refused(family: str, num: int, size: tuple[int, int], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        evaluation_captions(family, num, seed=0, size=size)
