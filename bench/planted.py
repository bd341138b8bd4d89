"""A slowdown of known size, planted to see whether a comparison finds it, and only it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.harness.compare import compared_columns, measure_pairs, pair_ratios
from bench.harness.jobs import Job
from bench.harness.load import Load
from bench.harness.target import Answer, Evidence, Target, TargetInfo
from bench.records import Measurement, Ratio, summarise

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


def trial(load: Load, baseline: Target, candidate: Target) -> Ratio:
    """Measure two targets as `compare` does; returns the latencies' ratio with its verdict."""
    pairs = measure_pairs(load, baseline, candidate)
    assert "latency_s" in compared_columns(pairs), "every row has it"
    return summarise(
        Measurement("baseline", pairs.baseline),
        Measurement("candidate", pairs.candidate),
        pair_ratios(("latency_s",)),
        paired=True,
        noise=Measurement("noise", pairs.noise),
    )["latency"]
