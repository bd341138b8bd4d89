from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kit.checkpoint.palette import COLOURS, lab
from kit.checkpoint.render import render
from kit.checkpoint.scenes import MATERIALS, Scene, SceneObject, random_scene
from kit.checkpoint.shapes import KINDS


def one_object(material: str, colour: str = "blue", background: str = "white") -> Scene:
    one = SceneObject("circle", colour, material, "medium", 100, 128, 128)
    return Scene(256, 256, background, 0, (one,))


def test_a_scene_is_drawn_the_same_each_time() -> None:
    scene = random_scene(np.random.default_rng(3), size=(192, 320))

    first = render(scene)
    assert first.shape == (192, 320, 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, render(scene))


def test_only_the_box_of_an_object_differs_from_the_ground() -> None:
    scene = one_object("matte")
    picture = render(scene)
    top, left, bottom, right = scene.objects[0].box

    changed = (picture != picture[0, 0]).any(-1)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1) == (top, left, bottom, right)


def test_materials_look_different_and_keep_the_colour() -> None:
    pictures = {material: render(one_object(material)) for material in MATERIALS}
    for at, (name, picture) in enumerate(pictures.items()):
        middle = np.median(lab(picture[90:166, 90:166]).reshape(-1, 3), axis=0)
        distances = {c: np.linalg.norm(middle - lab(rgb)) for c, rgb in COLOURS.items()}
        assert min(distances, key=distances.__getitem__) == "blue", name
        for other in list(pictures.values())[at + 1 :]:
            assert np.abs(picture.astype(int) - other).mean() > 0.5


def test_objects_throw_shadows_on_surfaces_only() -> None:
    def lightness_below(background: str) -> float:
        scene = one_object("matte", background=background)
        bottom = scene.objects[0].box[2]
        picture, empty = render(scene), render(Scene(256, 256, background, 0, ()))
        return float(picture[bottom, 128].sum() / empty[bottom, 128].sum())

    assert lightness_below("sand") < 0.8
    assert lightness_below("pink") == 1


def test_the_texture_moves_with_the_shift() -> None:
    first, second = (render(Scene(128, 128, "sea", shift, ())) for shift in (0, 5))

    np.testing.assert_array_equal(first[:, 5:], second[:, :-5])


def test_speed(record_property: Callable[[str, object], None]) -> None:
    draw = np.random.default_rng(0)
    made = [random_scene(draw, size=(256, 256)) for _ in range(100)]
    for scene in made:
        render(scene)
    started = time.process_time()
    for scene in made:
        render(scene)
    took_ms = (time.process_time() - started) * 1000 / len(made)
    record_property("ms_per_picture", took_ms)

    assert took_ms < 20


def test_every_kind_is_drawn_whole() -> None:
    for kind in KINDS:
        one = SceneObject(kind, "red", "matte", "large", 152, 128, 128)
        picture = render(Scene(256, 256, "white", 0, (one,)))
        assert (picture[0] == 250).all()
        assert (lab(picture)[..., 1] > 30).sum() > 1500
