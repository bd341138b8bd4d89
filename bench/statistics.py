"""Intervals of percentiles, ratios, rates and shares, and what a ratio lets one say.

Nothing assumes a distribution, and everything is reproducible: resamples are drawn by a generator
with a fixed seed whose stream numpy keeps for good, so that a record's numbers can be recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

CONFIDENCE: Final = 0.95
"""Of every interval but those of ratios."""

RATIO_CONFIDENCE: Final = 0.99
"""Higher, because a verdict follows: one in a hundred comparisons of a thing with itself errs."""

RESAMPLES: Final = 2000

SAME: Final = 0.05
"""A ratio whose interval stays this close to 1 is called the same."""

LEAST: Final = 0.01
"""Less is never called slower or faster: the harness itself may add as much."""

Verdict = Literal["slower", "faster", "same", "cannot tell"]
"""Of a candidate over its baseline, where the lower cost is the better one."""

_Z = 1.959963984540054
"""Quantile of the normal distribution at 0.975, for shares only."""

_Resampled = npt.NDArray[np.float64]
"""One number a resample, [RESAMPLES]."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Estimate:
    """A number from a sample with its interval."""

    value: float
    low: float | None
    """None, as `high`, where the sample is too small for an interval."""

    high: float | None
    num: int
    """Size of the sample."""

    confidence: float = CONFIDENCE
    """Of the interval."""


def num_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """Return the smallest sample that carries the percentile `share` (0.99 for p99).

    Its interval ends at order statistics, so both ends must exist: share^n and (1 - share)^n, the
    chances that all of the sample lies on one side, are at most half of what the confidence leaves.
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(share, 1 - share)))


def percentile(values: Sequence[float], share: float) -> Estimate | None:
    """Return a percentile with its interval between order statistics; None: too few values.

    The interval needs independent values; it holds for any distribution. Source: the number of
    values below the percentile is binomial.
    """
    num = len(values)
    if num < num_needed(share):
        return None
    ordered = sorted(values)
    low, high = _ranks(num, share)
    return Estimate(ordered[math.ceil(share * num) - 1], ordered[low], ordered[high], num)


def tail_carried(num: int) -> float | None:
    """Return the highest whole percentile, from the median on, that `num` values carry; or None."""
    return max((p / 100 for p in range(50, 100) if num_needed(p / 100) <= num), default=None)


def paired_ratio(
    above: Sequence[float], below: Sequence[float], confidence: float = RATIO_CONFIDENCE
) -> Estimate:
    """Return the median of above[i] / below[i], with an interval by resampling the pairs.

    A slow moment of the machine that hits both of a pair cancels. Without an interval below eight
    pairs (at 95 %: six).
    """
    assert len(above) == len(below), "a pair has two sides"
    ratios = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
    medians = _medians(ratios, _generator())
    return _with_bounds(float(np.median(ratios)), medians, len(ratios), confidence)


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Return median over median of two samples that were not taken in pairs, each resampled.

    Without an interval below eight values on a side; `num` is that of the smaller side.
    """
    generator = _generator()
    medians = [_medians(np.asarray(side, dtype=np.float64), generator) for side in (above, below)]
    value = float(np.median(above)) / float(np.median(below))
    num = min(len(above), len(below))
    return _with_bounds(value, medians[0] / medians[1], num, RATIO_CONFIDENCE)


def rate(gaps_s: Sequence[float]) -> Estimate:
    """Return events per second from the time before each, with an interval by resampling them."""
    gaps = np.asarray(gaps_s, dtype=np.float64)
    chosen = _generator().randint(0, len(gaps), (RESAMPLES, len(gaps)))
    # A resample may hold nothing but gaps of zero; a nanosecond is below what clocks tell.
    rates = len(gaps) / np.maximum(gaps[chosen].sum(axis=1), 1e-9)
    return _with_bounds(len(gaps) / math.fsum(gaps_s), rates, len(gaps), CONFIDENCE)


def share_of(num: int, total: int) -> Estimate:
    """Return a share with Wilson's interval."""
    share = num / total
    spread = _Z * math.sqrt(share * (1 - share) / total + (_Z / (2 * total)) ** 2)
    middle, scale = share + _Z**2 / (2 * total), 1 + _Z**2 / total
    return Estimate(
        share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale), total
    )


def judge(ratio: Estimate, noise: Estimate) -> Verdict:
    """Say what a ratio carries, given the ratio of the baseline to itself on the same machine.

    slower, faster: all of its interval is more than 1 % away from 1 and lies beyond the noise's.
    same: else, where both intervals are within 5 % of 1. Otherwise nothing can be said.
    """
    if ratio.low is None or ratio.high is None or noise.low is None or noise.high is None:
        return "cannot tell"
    if ratio.low > max(1 + LEAST, noise.high):
        return "slower"
    if ratio.high < min(1 - LEAST, noise.low):
        return "faster"
    near = min(ratio.low, noise.low) >= 1 - SAME and max(ratio.high, noise.high) <= 1 + SAME
    return "same" if near else "cannot tell"


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals share a point; False where one of them is missing."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _generator() -> np.random.RandomState:
    return np.random.RandomState(0)


def _medians(values: npt.NDArray[np.float64], generator: np.random.RandomState) -> _Resampled:
    """Return the median of each resample."""
    chosen = generator.randint(0, len(values), (RESAMPLES, len(values)))
    medians: _Resampled = np.median(values[chosen], axis=1)
    return medians


def _with_bounds(value: float, resampled: _Resampled, num: int, confidence: float) -> Estimate:
    if num < num_needed(0.5, confidence):
        return Estimate(value, None, None, num, confidence)
    ordered = np.sort(resampled)
    cut = int(RESAMPLES * (1 - confidence) / 2)
    return Estimate(value, float(ordered[cut]), float(ordered[-1 - cut]), num, confidence)


def _ranks(num: int, share: float) -> tuple[int, int]:
    """Return the order statistics, from 0, between which a percentile lies at CONFIDENCE."""
    tail = (1 - CONFIDENCE) / 2
    low, high, below = 0, num - 1, 0.0
    for k in range(num):
        if below <= tail:
            low = max(0, k - 1)
        below += math.exp(_log_binomial(num, k, share))
        if below >= 1 - tail:
            high = k
            break
    return low, high


def _log_binomial(num: int, k: int, share: float) -> float:
    """Log of the chance that k of num values lie below the percentile."""
    choose = math.lgamma(num + 1) - math.lgamma(k + 1) - math.lgamma(num - k + 1)
    return choose + k * math.log(share) + (num - k) * math.log1p(-share)
