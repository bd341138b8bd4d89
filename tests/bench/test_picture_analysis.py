from __future__ import annotations

import numpy as np
import pytest

from bench.picture_analysis import Region, find_background, find_regions
from bench.shape_classifier import degraded
from kit.checkpoint.dataset import sample
from kit.checkpoint.grounds import GROUNDS
from kit.checkpoint.palette import Rgb
from kit.checkpoint.render import render
from kit.checkpoint.scenes import Scene, SceneObject

SIZES = ((256, 256), (192, 320), (320, 192), (224, 288), (160, 352))


def region_of(one: SceneObject, regions: list[Region]) -> Region:
    return min(
        regions,
        key=lambda r: abs((r.left + r.right) / 2 - one.x) + abs((r.top + r.bottom) / 2 - one.y),
    )


def check(picture: np.ndarray, scene: Scene) -> None:
    background, _ = find_background(picture)
    assert background == scene.background
    regions = find_regions(picture, scene.background)
    assert len(regions) == len(scene.objects), scene
    for one in scene.objects:
        found = region_of(one, regions)
        assert found.colour == one.colour, one
        top, left, bottom, right = one.box
        middle = (found.top + found.bottom) / 2, (found.left + found.right) / 2
        assert top < middle[0] < bottom
        assert left < middle[1] < right


@pytest.mark.parametrize("size", SIZES)
def test_backgrounds_regions_and_colours_of_drawn_pictures(size: tuple[int, int]) -> None:
    for index in range(40):
        made = sample(index, 1, size=size, num_captions=0, held_out=index % 2 == 0)
        check(made.pixels, made.scene)


def test_soft_and_noisy_pictures_are_read_the_same() -> None:
    for index in range(20):
        made = sample(index, 2, size=(256, 256), num_captions=0)
        check(degraded(made.pixels, np.random.default_rng(index)), made.scene)


@pytest.mark.parametrize("name", GROUNDS)
@pytest.mark.parametrize("size", [(256, 256), (128, 512)])
def test_an_empty_ground_has_no_regions(name: str, size: tuple[int, int]) -> None:
    picture = render(Scene(*size, name, 0, ()))

    assert find_background(picture)[0] == name
    assert find_regions(picture, name) == []


@pytest.mark.parametrize("rgb", [(200, 0, 200), (128, 64, 0), (120, 120, 120)])
def test_a_ground_of_another_colour_is_unknown(rgb: Rgb) -> None:
    picture = np.full((256, 256, 3), rgb, dtype=np.uint8)

    name, distance = find_background(picture)
    assert name is None
    assert distance > 9


def test_noise_has_no_known_background() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)

    assert find_background(picture)[0] is None


def test_parts_near_each_other_are_one_region_and_far_ones_two() -> None:
    def regions(gap: int) -> list[Region]:
        picture = np.full((256, 256, 3), 250, dtype=np.uint8)
        picture[100:140, 60:100] = picture[100:140, 100 + gap : 140 + gap] = (38, 86, 208)
        return find_regions(picture, "white")

    assert len(regions(4)) == 1
    assert len(regions(12)) == 2
    assert [r.colour for r in regions(12)] == ["blue", "blue"]


def test_a_highlight_of_the_grounds_colour_does_not_make_a_second_region() -> None:
    picture = np.full((256, 256, 3), 250, dtype=np.uint8)
    picture[80:180, 80:180] = (214, 38, 42)
    picture[100:160, 100:160] = 250
    picture[115:145, 115:145] = (214, 38, 42)

    (found,) = find_regions(picture, "white")
    assert (found.top, found.left, found.bottom, found.right) == (80, 80, 180, 180)
    assert found.colour == "red"
    assert found.purity > 0.9


def test_specks_are_left_out() -> None:
    picture = np.full((256, 256, 3), 250, dtype=np.uint8)
    picture[50:60, 50:60] = 0

    assert find_regions(picture, "white") == []


def test_a_drawn_scene_is_read_from_left_to_right() -> None:
    objects = tuple(
        SceneObject(kind, colour, "metal", "small", 64, x, 190)
        for kind, colour, x in (("car", "blue", 190), ("cat", "pink", 50))
    )
    found = find_regions(render(Scene(256, 256, "grass", 0, objects)), "grass")

    assert [region.colour for region in found] == ["pink", "blue"]
