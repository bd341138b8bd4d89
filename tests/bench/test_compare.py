"""A comparison: equality first, then noise and both sides in turn, then a verdict or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from bench_loads import PainterTarget, opened, small_load
from pydantic import ValidationError
from record_samples import ENVIRONMENT

from bench.harness.compare import RequestFailedError, compare, measure_pairs
from bench.harness.equality import differences
from bench.harness.jobs import Job
from bench.harness.load import Closed, Poisson
from bench.harness.measure import measure
from bench.harness.target import Answer, Target
from bench.planted import MAX_FLAGGED, MIN_FOUND, PageBooking, Slowed, find_planted, trial
from bench.records import AGAIN, recompute
from bench.registry import Context
from kit.errors import ConfigError

CONTEXT = Context("small", ("python", "-m", "bench"), ENVIRONMENT, 1)


def test_a_comparison_is_a_record_that_can_be_recomputed() -> None:
    record = compare(
        CONTEXT, small_load(requests=8), opened(PainterTarget()), opened(PainterTarget())
    )
    assert record.status == "ok"
    assert record.equality is not None
    assert record.equality.seen == 0
    assert record.equality.compared.startswith("latents of every step and pixels")
    assert set(record.summary) == {"latency", "first_step"}
    assert recompute(record) == record.summary
    latency = record.summary["latency"]
    assert latency.paired is not None
    assert latency.noise is not None
    assert latency.verdict is not None
    assert record.noise is not None
    assert set(record.noise.rows[0]) >= {"latency_s", "latency_s" + AGAIN}
    assert record.findings["candidate pages of the pool"] == 100.0
    assert record.parameters["load"] == small_load(requests=8).as_json()


def flip(bit: int) -> Any:
    def change(latents: np.ndarray[Any, Any]) -> None:
        latents.view(np.uint32)[1, 2] ^= np.uint32(1 << bit)

    return change


@pytest.mark.parametrize("bit", [0, 31])
def test_one_bit_of_one_latent_is_a_failed_comparison_without_times(bit: int) -> None:
    candidate = PainterTarget(latents=flip(bit))
    record = compare(CONTEXT, small_load(), opened(PainterTarget()), opened(candidate))
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.kind == "NotEqual"
    assert record.equality is not None
    assert (record.equality.equal, record.equality.seen) == (False, 1)
    assert record.summary == {}
    assert candidate.asked == []


def test_differences_by_bits() -> None:
    zero, nan = np.zeros(3, np.float32), np.full(3, np.nan, np.float32)
    assert differences({"pixels": zero}, {"pixels": zero.copy()}) == 0
    assert differences({"pixels": nan}, {"pixels": nan.copy()}) == 0
    assert differences({"pixels": zero}, {"pixels": -zero}) == 3
    assert differences({"pixels": zero}, {"pixels": zero[:2]}) == 3
    assert differences({"pixels": zero}, {"pixels": zero.astype(np.float64)}) == 3
    # A server shows pixels only.
    assert differences({"pixels": zero, "latents of step 1": nan}, {"pixels": zero}) == 0


class Watched(PainterTarget):
    """Writes its name down whenever it is asked."""

    def __init__(self, name: str, seen: list[str]) -> None:
        super().__init__()
        self.name, self.seen = name, seen

    def ask(self, job: Job) -> Answer:
        self.seen.append(f"{self.name}{job.seed}")
        return super().ask(job)


def test_order_noise_before_each_pair_and_pairs_in_both_orders() -> None:
    seen: list[str] = []
    pairs = measure_pairs(small_load(), range(3), Watched("a", seen), Watched("b", seen))
    assert seen[:2] == ["a7", "b7"]  # warm-up
    assert seen[2:6] == ["a7", "a7", "a7", "b7"]
    assert seen[6:10] == ["a8", "a8", "b8", "a8"]
    assert seen[10:] == ["a9", "a9", "a9", "b9"]
    assert [row["seed"] for row in pairs.baseline] == [7, 8, 9]
    assert [row["seed"] for row in pairs.candidate] == [7, 8, 9]


def test_both_are_opened_anew_half_way_in_the_other_order() -> None:
    seen: list[str] = []

    @contextmanager
    def open_watched(name: str) -> Iterator[Target]:
        seen.append(f"open {name}")
        yield Watched(name, seen)
        seen.append(f"close {name}")

    record = compare(CONTEXT, small_load(), partial(open_watched, "a"), partial(open_watched, "b"))
    assert seen[:2] == ["open a", "open b"]
    half = seen.index("close a") + 1
    assert seen[half - 2 : half + 2] == ["close b", "close a", "open b", "open a"]
    assert seen[half + 2 : half + 4] == ["a7", "b7"]  # warm-up
    assert seen[half + 4 : -2] == ["a9", "a9", "a9", "b9"]
    assert record.baseline is not None
    assert [row["request"] for row in record.baseline.rows] == [0, 1, 2]


def test_baseline_rows_are_the_baselines_in_both_orders() -> None:
    class Told(PainterTarget):
        def ask(self, job: Job) -> Answer:
            found = super().ask(job)
            return Answer(found.outcome, found.done, found.sha256, {"decode_s": 2.0})

    pairs = measure_pairs(small_load(), range(3), PainterTarget(), Told())
    assert all("decode_s" in row for row in pairs.candidate)
    assert not any("decode_s" in row for row in pairs.baseline)


def test_a_failed_request_ends_a_comparison() -> None:
    class Broken(PainterTarget):
        def ask(self, job: Job) -> Answer:
            return Answer("overloaded", super().ask(job).done, message="too many")

    with pytest.raises(RequestFailedError, match="request 0 of a comparison: overloaded: too many"):
        compare(CONTEXT, small_load(), opened(PainterTarget()), opened(Broken()))


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals": Closed("closed", concurrency=2)},
        {"arrivals": Poisson("poisson", rate_per_s=1.0, seed=1)},
        {"requests": None, "duration_s": 1.0},
    ],
)
def test_loads_that_cannot_be_asked_in_turn(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="two targets are asked in turn"):
        compare(CONTEXT, small_load(**changes), opened(PainterTarget()), opened(PainterTarget()))


def test_a_large_slowdown_is_seen_from_both_sides() -> None:
    target, load = PageBooking(), small_load(requests=40)
    assert trial(load, target, Slowed(target, 4.0)).verdict == "slower"
    assert trial(load, Slowed(target, 4.0), target).verdict == "faster"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_planted_slowdowns_are_found_and_twins_are_not_flagged() -> None:
    """Of 20 of 10 % in work of about a millisecond 19; of 20 twins at most 1 is flagged."""
    record = find_planted(CONTEXT, small_load(requests=600, warmup=5), PageBooking())
    assert record.candidate is not None
    rows = record.candidate.rows
    assert len(rows) == 20
    assert record.findings["planted slowdowns found"] >= MIN_FOUND, rows
    assert record.findings["flagged without a slowdown"] <= MAX_FLAGGED, record.baseline
    assert record.findings["repeated comparisons whose intervals overlap"] > 0.8
    assert record.findings["planted slowdowns found"] == sum(
        row["verdict"] == "slower" for row in rows
    )


def test_a_load_is_a_record_of_one_side() -> None:
    load = small_load(requests=8, slo_latency_s=60.0)
    record = measure(CONTEXT, load, PainterTarget())
    assert (record.kind, record.status, record.baseline) == ("load", "ok", None)
    assert record.candidate is not None
    assert len(record.candidate.rows) == 8
    assert record.figures["slo_share"].value == 1.0
    assert record.parameters["warmup_requests"] == 1
    assert record.findings["pages_used_peak"] == 2.0
    latency = record.figures["latency_s p50"]
    better = {**record.figures, "latency_s p50": replace(latency, value=latency.value / 2)}
    with pytest.raises(ValidationError, match="figures: do not follow from the raw rows"):
        replace(record, figures=better)


def test_a_load_without_any_picture_is_a_failed_record() -> None:
    class Refusing(PainterTarget):
        def ask(self, job: Job) -> Answer:
            return Answer("refused", super().ask(job).done, message="no such size")

    record = measure(CONTEXT, small_load(), Refusing())
    assert record.status == "failed"
    assert record.error is not None
    assert "3 refused; the first one: no such size" in record.error.message
    assert record.figures["success_share"].value == 0.0
