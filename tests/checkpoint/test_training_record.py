"""Curves of a record."""

from __future__ import annotations

from itertools import pairwise

from kit.checkpoint.training_record import thinned


def test_a_long_curve_keeps_its_end_and_a_short_one_everything() -> None:
    long = [{"step": at} for at in range(1000)]
    kept = thinned(long)
    assert len(kept) <= 120
    assert kept[-1] == {"step": 999}
    strides = {b["step"] - a["step"] for a, b in pairwise(kept)}
    assert len(strides) == 1
    assert thinned(long[:5]) == long[:5]
    assert thinned([]) == []
