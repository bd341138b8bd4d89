from __future__ import annotations

import numpy as np
import pytest

from kit.checkpoint.dataset import map_chunks, render_samples, sample
from kit.checkpoint.render import render
from kit.errors import ConfigError


def test_a_sample_depends_on_index_seed_and_size_only():
    first = sample(5, 0, size=(224, 288))
    again = sample(5, 0, size=(224, 288))

    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert first[1:] == again[1:]
    assert first.scene != sample(6, 0, size=(224, 288)).scene
    assert first.scene != sample(5, 1, size=(224, 288)).scene


def test_a_sample_shows_its_scene():
    made = sample(1, 2, size=(256, 256), num_captions=3)

    np.testing.assert_array_equal(made.pixels, render(made.scene))
    assert len(made.captions) == 3
    assert not made.scene.held_out
    assert sample(1, 2, size=(256, 256), held_out=True).scene.held_out


def test_number_of_captions_does_not_change_the_picture():
    few, many = (sample(4, 0, size=(128, 256), num_captions=n) for n in (0, 9))

    np.testing.assert_array_equal(few.pixels, many.pixels)


def test_samples_of_a_batch_are_the_single_ones():
    done: list[int] = []
    batch = render_samples(70, 3, size=(128, 128), num_captions=2, on_progress=done.append)

    assert batch.pixels.shape == (70, 128, 128, 3)
    assert done == [64, 6]
    for at in (0, 63, 64, 69):
        single = sample(at, 3, size=(128, 128), num_captions=2)
        np.testing.assert_array_equal(batch.pixels[at], single.pixels)
        assert (batch.captions[at], batch.scenes[at]) == single[1:]


def test_workers_make_the_same_samples():
    alone = render_samples(66, 1, size=(128, 128), num_captions=1)
    shared = render_samples(66, 1, size=(128, 128), num_captions=1, num_workers=2)

    np.testing.assert_array_equal(alone.pixels, shared.pixels)
    assert (alone.captions, alone.scenes) == (shared.captions, shared.scenes)


def test_chunks_cover_the_range_in_order():
    assert [i for chunk in map_chunks(list, 150, 1) for i in chunk] == list(range(150))
    assert list(map_chunks(list, 0, 1)) == []


def test_an_unsupported_size_is_refused_before_work():
    with pytest.raises(ConfigError, match="multiples of 16"):
        render_samples(10, 0, size=(250, 250))
