"""Positions of a row against the literal formula."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kit.tokenizer.layout import Layout, positions_yx


def literal_positions(layout: Layout) -> list[tuple[int, int]]:
    """The formula token by token, in floats with a floor."""
    positions = [(i, i) for i in range(layout.seq_len)]
    start = layout.prefix_len + layout.num_special
    h, w = layout.grid
    for i in range(h):
        for j in range(w):
            y = math.floor(start + (h * w - h) / 2 + i)
            x = math.floor(start + (h * w - w) / 2 + j)
            positions[start + i * w + j] = (y, x)
    return positions


layouts = st.builds(
    Layout,
    prefix_len=st.integers(1, 60),
    num_special=st.integers(1, 3),
    grid=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    tail_len=st.integers(0, 5),
)


@given(layouts)
def test_positions_against_literal_formula(layout: Layout) -> None:
    positions = positions_yx(layout)
    assert positions.dtype == np.int32
    assert [tuple(p) for p in positions.tolist()] == literal_positions(layout)


def test_positions_where_the_half_is_truncated() -> None:
    """720x1280 and 1280x720 are the only real buckets with an odd and an even side."""
    for grid in ((45, 80), (80, 45)):
        layout = Layout(prefix_len=21, num_special=1, grid=grid, tail_len=1)
        positions = positions_yx(layout)
        assert [tuple(p) for p in positions.tolist()] == literal_positions(layout)
        h, w = grid
        assert (h * w - h) % 2 == 1 or (h * w - w) % 2 == 1


@given(layouts)
def test_lengths_add_up(layout: Layout) -> None:
    span = layout.image_span
    assert span.start == layout.prefix_len + layout.num_special
    assert span.end == layout.kv_len == layout.prefix_len + layout.target_len
    assert layout.seq_len == layout.kv_len + layout.tail_len
