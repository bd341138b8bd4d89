from __future__ import annotations

import numpy as np
import pytest

from kit.checkpoint.palette import COLOURS, Rgb, lab, paint


def distance(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    return float(np.linalg.norm(lab(a) - lab(b)))


@pytest.mark.parametrize(
    ("rgb", "expected"),
    [
        ((255, 255, 255), (100.0, 0.0, 0.0)),
        ((0, 0, 0), (0.0, 0.0, 0.0)),
        ((255, 0, 0), (53.24, 80.09, 67.20)),
        ((0, 0, 255), (32.30, 79.19, -107.86)),
        ((128, 128, 128), (53.59, 0.0, 0.0)),
    ],
)
def test_lab_against_published_values(rgb: Rgb, expected: tuple[float, float, float]) -> None:
    np.testing.assert_allclose(lab(rgb), expected, atol=0.1)


def test_colours_are_far_apart() -> None:
    names = list(COLOURS)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            assert distance(COLOURS[a], COLOURS[b]) > 30, (a, b)


@pytest.mark.parametrize("colour", COLOURS)
def test_neighbours_of_a_colour_differ_and_details_are_visible_on_it(colour: str) -> None:
    made = paint(colour)

    assert made.body == COLOURS[colour]
    assert distance(made.body, made.shade) > 8
    assert distance(made.body, made.tint) > 4
    for detail in (made.dark, made.light):
        assert distance(made.body, detail) > 25
