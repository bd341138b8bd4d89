"""Whether two targets compute the same, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bench.harness.jobs import Job
from bench.harness.target import Evidence, Target
from bench.records import EqualityCheck


def check_equality(baseline: Target, candidate: Target, jobs: Iterable[Job]) -> EqualityCheck:
    """Make each job with both targets and count what differs in what both of them show.

    In-process engines show the latents of every step and the pixels, servers the pixels.
    """
    num_different, names = 0, set[str]()
    for one in jobs:
        evidence = [target.evidence(one) for target in (baseline, candidate)]
        num_different += differences(*evidence)
        names |= evidence[0].keys() & evidence[1].keys()
    what = "latents of every step and pixels" if len(names) > 1 else "pixels"
    return EqualityCheck.of(
        compared=f"{what}: numbers that differ in any bit",
        limit=0,
        seen=num_different,
    )


def differences(one: Evidence, other: Evidence) -> int:
    """Count the numbers that differ in any bit, in all that both sides show."""
    shared = one.keys() & other.keys()
    assert "pixels" in shared, "every target shows its pixels"
    return sum(_different(one[name], other[name]) for name in shared)


def _different(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> int:
    """Count by bytes: 0 and -0 differ, and a NaN equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return max(one.size, other.size)
    pairs = [
        np.ascontiguousarray(side).view(np.uint8).reshape(one.size, -1) for side in (one, other)
    ]
    return int((pairs[0] != pairs[1]).any(axis=1).sum())
