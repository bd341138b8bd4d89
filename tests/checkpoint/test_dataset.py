from __future__ import annotations

import numpy as np
import pytest

from kit.checkpoint.dataset import map_chunks, sample
from kit.checkpoint.render import render
from kit.errors import ConfigError


def test_a_sample_depends_on_index_seed_and_size_only() -> None:
    first = sample(5, 0, size=(224, 288))
    again = sample(5, 0, size=(224, 288))

    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert first[1:] == again[1:]
    assert first.scene != sample(6, 0, size=(224, 288)).scene
    assert first.scene != sample(5, 1, size=(224, 288)).scene


def test_a_sample_shows_its_scene() -> None:
    made = sample(1, 2, size=(256, 256), num_captions=3)

    np.testing.assert_array_equal(made.pixels, render(made.scene))
    assert len(made.captions) == 3
    assert not made.scene.held_out
    assert sample(1, 2, size=(256, 256), held_out=True).scene.held_out


def test_number_of_captions_does_not_change_the_picture() -> None:
    few, many = (sample(4, 0, size=(128, 256), num_captions=n) for n in (0, 9))

    np.testing.assert_array_equal(few.pixels, many.pixels)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_chunks_cover_the_range_in_order(num_workers: int) -> None:
    assert [i for chunk in map_chunks(list, 150, num_workers) for i in chunk] == list(range(150))
    assert list(map_chunks(list, 0, num_workers)) == []


def test_an_unsupported_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiples of 16"):
        sample(0, 0, size=(250, 250))
