"""Whether a comparison finds a planted slowdown of 10 %, and flags none where there is none."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import pairwise

from tqdm import tqdm

from bench.harness.engine_target import EngineTarget
from bench.harness.equality import check_equality
from bench.harness.jobs import kinds_of
from bench.harness.load import LOADS, read_load
from bench.planted import Slowed, trial
from bench.records import Measurement, Ratio, Record, Row
from bench.registry import Context
from bench.statistics import overlap
from kit.api import ImageEngine, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

NUM_TRIALS = 20
SHARE = 0.10
MIN_FOUND, MAX_FLAGGED = 19, 1
"""Of the trials with a slowdown, and of those without."""


def run(context: Context) -> Record:
    """Make trials with and without a slowdown in turn, of `context.repeats` pairs each."""
    load = replace(
        read_load(LOADS / "vase.yaml"),
        sizes=("384x128",),
        steps=(1,),
        guidance=(1.0,),
        requests=context.repeats,
    )
    rows: dict[float, list[Row]] = {0.0: [], SHARE: []}
    twins: list[Ratio] = []
    with ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT)) as engine:
        target = EngineTarget(engine)
        equality = check_equality(target, Slowed(target, SHARE), kinds_of(load))
        # No bar where nobody looks at one.
        for _ in tqdm(range(NUM_TRIALS), file=sys.stderr, disable=None):
            for share in rows:
                found = trial(load, target, Slowed(target, share))
                rows[share].append(_row(found))
                if not share:
                    twins.append(found)
    return context.record(
        parameters={
            "load": load.as_json(),
            "num_trials_each": NUM_TRIALS,
            "planted_share": SHARE,
            "at_least_found": MIN_FOUND,
            "at_most_flagged": MAX_FLAGGED,
            "order": "without, with, alternating",
        },
        equality=equality,
        baseline=Measurement("the engine against itself, a row a comparison", tuple(rows[0.0])),
        candidate=Measurement(
            "the engine against itself with a wait after each request", tuple(rows[SHARE])
        ),
        ratios={"found": ("candidate.ratio", "baseline.ratio")},
        paired=True,
        findings={
            "planted slowdowns found": sum(row["verdict"] == "slower" for row in rows[SHARE]),
            "flagged without a slowdown": sum(
                row["verdict"] in ("slower", "faster") for row in rows[0.0]
            ),
            "repeated comparisons whose intervals overlap, share": _overlapping(twins),
        },
    )


def _row(found: Ratio) -> Row:
    assert found.paired is not None, "pairs were measured"
    assert found.noise is not None, "and the noise before them"
    return {
        "ratio": found.paired.value,
        "low": found.paired.low,
        "high": found.paired.high,
        "noise_low": found.noise.low,
        "noise_high": found.noise.high,
        "verdict": found.verdict,
        "load_average_1min": os.getloadavg()[0],
    }


def _overlapping(twins: list[Ratio]) -> float:
    """Return the share of comparisons that agree with the one before: the same thing run twice."""
    pairs = list(pairwise(twins))
    agreeing = [
        a.paired is not None and b.paired is not None and overlap(a.paired, b.paired)
        for a, b in pairs
    ]
    return sum(agreeing) / len(agreeing)
