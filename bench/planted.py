"""A slowdown of known size, planted to see whether a comparison finds it, and only it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from tqdm import tqdm

from bench.harness.compare import compared_columns, measure_pairs, requests_of
from bench.harness.equality import check_equality
from bench.harness.jobs import Job, kinds_of
from bench.harness.load import Load
from bench.harness.target import Answer, Evidence, Target, TargetInfo
from bench.records import Measurement, Ratio, Record, Row, pair_ratios, summarise
from bench.registry import Context
from bench.statistics import overlap
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager

NUM_TRIALS = 20
SHARE = 0.10
MIN_FOUND, MAX_FLAGGED = 19, 1
"""Of the trials with a slowdown, and of those without."""

_OVERSLEEP_S = 0.0002


@dataclass(frozen=True)
class Slowed:
    """A Target that waits after each request, for a share of the time that this one took.

    It sleeps, and spins for what a sleep may oversleep.
    """

    target: Target
    share: float

    def describe(self) -> TargetInfo:
        return self.target.describe()

    def ask(self, job: Job) -> Answer:
        started = time.perf_counter()
        answer = self.target.ask(job)
        end = answer.done + self.share * (answer.done - started)
        asleep_s = end - _OVERSLEEP_S - time.perf_counter()
        if asleep_s > 0:
            time.sleep(asleep_s)
        while time.perf_counter() < end:
            pass
        return replace(answer, done=time.perf_counter())

    def evidence(self, job: Job) -> Evidence:
        return self.target.evidence(job)

    def facts(self) -> Mapping[str, float]:
        return self.target.facts()


class PageBooking:
    """A Target that books pages of requests and gives them back: a millisecond of the kit's work.

    Short enough that most requests are not interrupted, so it can be timed on a busy machine.
    """

    _NUM_CYCLES, _NUM_ROWS, _NUM_TOKENS = 12, 2, 3000
    _GEOMETRY = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=8, dtype_bytes=4, page_size=16)

    def describe(self) -> TargetInfo:
        return TargetInfo("booking pages", {}, {})

    def ask(self, job: Job) -> Answer:
        del job  # every request is the same work
        self._book()
        return Answer("ok", time.perf_counter())

    def evidence(self, job: Job) -> Evidence:
        """Return the page tables in the place of pixels."""
        del job
        return {"pixels": np.array(self._book())}

    def facts(self) -> Mapping[str, float]:
        return {}

    def _book(self) -> list[tuple[tuple[int, ...], ...]]:
        manager = KVCacheManager(self._GEOMETRY, 400, self._NUM_ROWS)
        tables = []
        for at in range(self._NUM_CYCLES):
            allocation = manager.reserve(f"request {at}", self._NUM_ROWS, self._NUM_TOKENS)
            assert allocation is not None, "the pool is empty and large enough"
            tables.append(allocation.page_tables)
            manager.release(allocation)
        return tables


def trial(load: Load, baseline: Target, candidate: Target) -> Ratio:
    """Measure two targets as `compare` does; returns the latencies' ratio with its verdict."""
    pairs = measure_pairs(load, requests_of(load), baseline, candidate)
    assert "latency_s" in compared_columns(pairs), "every row has it"
    return summarise(
        Measurement("baseline", pairs.baseline),
        Measurement("candidate", pairs.candidate),
        pair_ratios(("latency_s",)),
        paired=True,
        noise=Measurement("noise", pairs.noise),
    )["latency"]


def find_planted(context: Context, load: Load, target: Target) -> Record:
    """Compare a target with itself, without and with a slowdown in turn, `NUM_TRIALS` times each.

    The record's rows are comparisons; its findings say how many slowdowns were found or made up.
    """
    trials: dict[float, list[Ratio]] = {0.0: [], SHARE: []}
    rows: dict[float, list[Row]] = {0.0: [], SHARE: []}
    equality = check_equality(target, Slowed(target, SHARE), kinds_of(load))
    # No bar where nobody looks at one.
    for _ in tqdm(range(NUM_TRIALS), file=sys.stderr, disable=None):
        for share in trials:
            candidate = Slowed(target, share) if share else target
            trials[share].append(trial(load, target, candidate))
            rows[share].append(_row(trials[share][-1]))
    name = target.describe().label
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
        baseline=Measurement(f"{name} against itself, a row a comparison", tuple(rows[0.0])),
        candidate=Measurement("the same with a wait after each request", tuple(rows[SHARE])),
        ratios={"found": ("candidate.ratio", "baseline.ratio")},
        paired=True,
        findings=_findings(trials),
    )


def _findings(trials: Mapping[float, list[Ratio]]) -> dict[str, float]:
    twins = [one.paired for one in trials[0.0]]
    agreeing = [a is not None and b is not None and overlap(a, b) for a, b in pairwise(twins)]
    return {
        "planted slowdowns found": sum(one.verdict == "slower" for one in trials[SHARE]),
        "flagged without a slowdown": sum(
            one.verdict in ("slower", "faster") for one in trials[0.0]
        ),
        "repeated comparisons whose intervals overlap": sum(agreeing) / len(agreeing),
    }


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
