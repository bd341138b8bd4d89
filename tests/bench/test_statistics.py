"""Percentiles, ratios, rates and shares against known answers and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from bench.statistics import (
    Estimate,
    judge,
    num_needed,
    overlap,
    paired_ratio,
    percentile,
    rate,
    ratio_of_medians,
    share_of,
    tail_carried,
)

HALF_OF_5_PERCENT = Fraction(25, 1000)


def chance_at_most(k: int, num: int, share: Fraction) -> Fraction:
    """That at most k of num values lie below the percentile, exactly."""
    return sum(
        (math.comb(num, i) * share**i * (1 - share) ** (num - i) for i in range(k + 1)), Fraction()
    )


@pytest.mark.parametrize(
    ("share", "needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.01, 368)]
)
def test_requests_that_a_percentile_needs(share: float, needed: int) -> None:
    """From 1 - 0.975 <= share^n: what one sample fewer does not carry is refused."""
    assert num_needed(share) == needed
    assert percentile(list(range(needed)), share) is not None
    assert percentile(list(range(needed - 1)), share) is None


@pytest.mark.parametrize(
    ("num", "tail"), [(5, None), (6, 0.54), (30, 0.88), (36, 0.9), (367, 0.98), (1000, 0.99)]
)
def test_the_tail_that_a_sample_carries(num: int, tail: float | None) -> None:
    assert tail_carried(num) == tail
    if tail is not None:
        assert percentile(list(range(num)), tail) is not None
        assert tail == 0.99 or percentile(list(range(num)), tail + 0.01) is None


@pytest.mark.parametrize("num", [6, 7, 40, 72, 100, 368, 1000])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)])
def test_percentile_interval_is_the_tightest_that_holds(num: int, share: Fraction) -> None:
    found = percentile([float(i) for i in range(num)], float(share))
    if found is None:
        assert num < num_needed(float(share))
        return
    assert found.low is not None
    assert found.high is not None
    low, high = int(found.low), int(found.high)  # the values are their own ranks
    assert found.value == math.ceil(share * num) - 1
    assert low <= found.value <= high
    assert chance_at_most(low, num, share) <= HALF_OF_5_PERCENT
    assert chance_at_most(low + 1, num, share) > HALF_OF_5_PERCENT
    assert chance_at_most(high, num, share) >= 1 - HALF_OF_5_PERCENT
    assert chance_at_most(high - 1, num, share) < 1 - HALF_OF_5_PERCENT


def test_percentile_of_unordered_values() -> None:
    assert percentile([3.0, 1.0, 2.0, 6.0, 5.0, 4.0], 0.5) == Estimate(3.0, 1.0, 6.0, 6)


def test_a_drift_that_hits_both_of_a_pair_cancels_in_pairs_only() -> None:
    drift = [1.0 + i for i in range(20)]
    slower = [1.1 * value for value in drift]
    found = paired_ratio(slower, drift)
    assert found.value == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)
    unpaired = ratio_of_medians(slower, drift)
    assert unpaired.value == pytest.approx(1.1)
    assert unpaired.low is not None
    assert unpaired.low < 0.9


def test_intervals_are_the_same_each_time() -> None:
    draw = np.random.default_rng(3)
    one, other = draw.lognormal(size=(2, 15)).tolist()
    assert paired_ratio(one, other) == paired_ratio(one, other)
    assert ratio_of_medians(one, other) == ratio_of_medians(one, other)


def test_intervals_of_ratios_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(11)
    num_right = 0
    for _ in range(200):
        below = draw.lognormal(sigma=0.2, size=20)
        above = 1.1 * draw.lognormal(sigma=0.2, size=20)
        found = paired_ratio(above.tolist(), below.tolist())
        assert found.low is not None
        assert found.high is not None
        num_right += found.low <= 1.1 <= found.high
    assert num_right >= 192


def test_few_pairs_have_no_interval() -> None:
    assert paired_ratio([2.0] * 7, [1.0] * 7) == Estimate(2.0, None, None, 7, 0.99)
    assert paired_ratio([2.0] * 8, [1.0] * 8) == Estimate(2.0, 2.0, 2.0, 8, 0.99)
    assert paired_ratio([2.0] * 6, [1.0] * 6, 0.95) == Estimate(2.0, 2.0, 2.0, 6, 0.95)
    assert ratio_of_medians([2.0] * 9, [1.0] * 7).low is None


def test_rate() -> None:
    assert rate([0.5] * 10) == Estimate(2.0, 2.0, 2.0, 10)
    found = rate([1.0, 3.0] * 10)
    assert found.value == 0.5
    assert found.low is not None
    assert found.high is not None
    # The mean gap is 2 with a standard error of 1 / sqrt(20).
    assert found.low == pytest.approx(1 / (2 + 1.96 / 20**0.5), rel=0.05)
    assert found.high == pytest.approx(1 / (2 - 1.96 / 20**0.5), rel=0.05)


def test_share_by_known_answers() -> None:
    """Wilson's interval of 8 in 10, and of all and none."""
    found = share_of(8, 10)
    assert (found.value, found.num) == (0.8, 10)
    assert found.low == pytest.approx(0.4902, abs=1e-4)
    assert found.high == pytest.approx(0.9433, abs=1e-4)
    assert share_of(10, 10).low == pytest.approx(0.7225, abs=1e-4)
    assert share_of(10, 10).high == pytest.approx(1.0)
    assert share_of(0, 10).low == 0.0


def estimate(low: float | None, high: float | None) -> Estimate:
    value = 1.0 if low is None or high is None else (low + high) / 2
    return Estimate(value, low, high, 9)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        ((1.06, 1.14), (0.97, 1.03), "slower"),
        ((1.06, 1.14), (0.97, 1.06), "cannot tell"),
        ((1.06, 1.14), (0.90, 0.95), "slower"),
        ((0.99, 1.14), (0.90, 0.95), "cannot tell"),
        ((0.86, 0.94), (0.97, 1.03), "faster"),
        ((0.86, 0.94), (0.94, 1.03), "cannot tell"),
        ((0.86, 1.01), (1.05, 1.10), "cannot tell"),
        ((0.97, 1.02), (0.98, 1.04), "same"),
        ((1.011, 1.02), (0.999, 1.001), "slower"),
        ((1.009, 1.03), (0.999, 1.001), "same"),
        ((0.98, 0.989), (0.999, 1.001), "faster"),
        ((0.97, 0.991), (0.999, 1.001), "same"),
        ((1.002, 1.016), (0.94, 1.001), "cannot tell"),
        ((0.94, 1.02), (0.98, 1.04), "cannot tell"),
        ((0.97, 1.02), (0.98, 1.06), "cannot tell"),
        ((None, None), (0.98, 1.04), "cannot tell"),
        ((1.06, 1.14), (None, None), "cannot tell"),
    ],
)
def test_verdict(ratio: tuple[float, float], noise: tuple[float, float], verdict: str) -> None:
    assert judge(estimate(*ratio), estimate(*noise)) == verdict


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [((1, 2), (2, 3), True), ((1, 2), (2.1, 3), False), ((1, 4), (2, 3), True)],
)
def test_overlap(one: tuple[float, float], other: tuple[float, float], shared: bool) -> None:
    assert overlap(estimate(*one), estimate(*other)) is shared
    assert overlap(estimate(*other), estimate(*one)) is shared
    assert not overlap(estimate(*one), estimate(None, None))
