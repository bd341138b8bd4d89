from __future__ import annotations

import numpy as np
import pytest

from kit.checkpoint.palette import Paint
from kit.checkpoint.shapes import KINDS, SIDE_STEP, extent, silhouette

SIDE = 100
MAX_OVERLAP = 0.85


def centred(kind: str) -> np.ndarray:
    alpha = silhouette(kind, SIDE).alpha > 0.5
    height, width = alpha.shape
    canvas = np.zeros((SIDE, SIDE), dtype=bool)
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    canvas[top : top + height, left : left + width] = alpha
    return canvas


def test_kinds_have_different_silhouettes() -> None:
    masks = {kind: centred(kind) for kind in KINDS}
    names = list(KINDS)
    overlaps = {
        (a, b): (masks[a] & masks[b]).sum() / (masks[a] | masks[b]).sum()
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }

    worst = max(overlaps, key=overlaps.__getitem__)
    assert overlaps[worst] < MAX_OVERLAP, worst


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [32, 100, 156])
def test_silhouette_is_tight_and_adds_up(kind: str, side: int) -> None:
    shape = silhouette(kind, side)
    alpha = shape.alpha

    assert alpha.shape == extent(kind, side) == shape.depth.shape == shape.body.shape
    assert max(alpha.shape) <= side
    assert max(alpha.shape) > 0.8 * side
    assert alpha[0].any()
    assert alpha[-1].any()
    assert alpha[:, 0].any()
    assert alpha[:, -1].any()
    np.testing.assert_allclose(shape.coverage.sum(0), alpha, atol=0.02)
    assert alpha.max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_most_of_a_silhouette_shows_its_own_colour(kind: str) -> None:
    shape = silhouette(kind, SIDE)
    body = shape.coverage[shape.roles.index(Paint._fields.index("body"))].sum()

    assert body > 0.35 * shape.alpha.sum()
    assert shape.body.sum() > 0.6 * shape.alpha.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_smooth(kind: str) -> None:
    alpha = silhouette(kind, SIDE).alpha

    assert len(np.unique(alpha)) > 4 or kind == "square"


def test_depth_is_zero_at_an_edge_and_one_inside() -> None:
    depth = silhouette("square", SIDE).depth

    assert depth[0].max() < 0.15
    assert depth[len(depth) // 2, len(depth) // 2] > 0.99


def test_a_silhouette_is_drawn_once() -> None:
    assert silhouette("star", 40) is silhouette("star", 40)
    assert 40 % SIDE_STEP == 0
