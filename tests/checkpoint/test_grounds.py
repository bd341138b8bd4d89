from __future__ import annotations

import numpy as np
import pytest

from kit.checkpoint.grounds import (
    GROUNDS,
    HORIZON,
    MIN_CONTRAST,
    NUM_SHIFTS,
    contrast,
    distance_to_band,
    ground_canvas,
    shifts,
)
from kit.checkpoint.palette import COLOURS, lab
from kit.checkpoint.scenes import colours_on

PLAIN = [name for name, ground in GROUNDS.items() if ground.upper[0] == ground.upper[1]]


@pytest.mark.parametrize("size", [(256, 256), (192, 320), (368, 144)])
@pytest.mark.parametrize("name", GROUNDS)
def test_canvas_stays_near_the_bands_of_its_zones(name: str, size: tuple[int, int]) -> None:
    height, width = size
    canvas = ground_canvas(name, height, width)
    ground = GROUNDS[name]
    horizon = round(HORIZON * height) if ground.stands else height

    assert canvas.shape == (height, width + NUM_SHIFTS * shifts(name), 3)
    assert canvas.dtype == np.uint8
    off = distance_to_band(lab(canvas[:horizon]), ground.upper)
    # The stars of the night and the seams of the table are darker or lighter than their band.
    assert np.quantile(off, 0.98) < 6
    if ground.surface:
        off = distance_to_band(lab(canvas[horizon:]), ground.surface)
        assert np.quantile(off, 0.9) < 6


@pytest.mark.parametrize("name", PLAIN)
def test_plain_ground_is_one_colour(name: str) -> None:
    canvas = ground_canvas(name, 128, 128)

    assert (canvas == canvas[0, 0]).all()


def test_grounds_are_told_apart_by_their_top_and_bottom() -> None:
    canvases = [lab(ground_canvas(name, 256, 256)) for name in GROUNDS]
    ends = np.stack([np.stack([c[:20].mean((0, 1)), c[-20:].mean((0, 1))]) for c in canvases])
    distances = np.linalg.norm(ends[:, None] - ends, axis=-1).max(-1) + 100 * np.eye(len(ends))
    near = {frozenset((list(GROUNDS)[i], list(GROUNDS)[j])) for i, j in np.argwhere(distances < 15)}

    # These differ by their texture.
    assert near <= {
        frozenset(("grey", "checkerboard")),
        frozenset(("white", "checkerboard")),
        frozenset(("blue", "sky")),
    }


def test_textures_are_smooth() -> None:
    for name, ground in GROUNDS.items():
        if ground.stands:
            surface = ground_canvas(name, 256, 256)[round(HORIZON * 256) + 2 :].astype(int)
            assert np.abs(np.diff(surface, axis=1)).mean() < 1.5, name


def test_a_shared_canvas_cannot_be_painted_over() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ground_canvas("sand", 128, 128)[0] = 0


def test_low_contrast_pairs_are_left_out() -> None:
    left_out = {(c, g) for g in GROUNDS for c in COLOURS if c not in colours_on(g)}

    assert {("white", "white"), ("green", "grass"), ("brown", "table"), ("black", "night")} <= (
        left_out
    )
    assert all(contrast(*pair) < MIN_CONTRAST for pair in left_out)
    assert min(len(colours_on(g)) for g in GROUNDS) >= 10
