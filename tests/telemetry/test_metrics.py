"""The metrics of an engine: names, outcomes, and a registry of its own."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kit.errors import (
    CancelledError,
    CapacityError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KVCacheError,
    OverloadedError,
    UnavailableError,
    WorkerError,
)
from kit.telemetry.metrics import OUTCOMES, PHASES, EngineMetrics, outcome_of


def samples(metrics: EngineMetrics) -> dict[str, float]:
    """Every sample by its name with its labels, as a scraper sees it."""
    text, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_every_series_is_there_before_its_first_event() -> None:
    seen = samples(EngineMetrics())
    for name in (
        "kit_queue_requests",
        "kit_running_requests",
        "kit_kv_pages_used",
        "kit_kv_pages_peak",
        "kit_kv_pages_cached",
        "kit_prefix_cache_queries_total",
        "kit_prefix_cache_hits_total",
        "kit_prefix_cache_evictions_total",
        "kit_kv_pool_pages",
        "kit_kv_pool_bytes",
        "kit_steps_total",
        "kit_step_seconds_count",
        *(f"kit_request_seconds_count/{phase}" for phase in PHASES),
        *(f"kit_requests_total/{outcome}" for outcome in OUTCOMES),
    ):
        assert seen[name] == 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidRequestError("x"), "refused"),
        (CapacityError("x", needed_bytes=2, given_bytes=1), "refused"),
        (OverloadedError("x", retry_after_s=1), "overloaded"),
        (CancelledError("x"), "cancelled"),
        (DeadlineError("x"), "deadline"),
        (UnavailableError("x"), "unavailable"),
        (EngineError("x"), "failed"),
        (WorkerError("x"), "failed"),
        (KVCacheError("x"), "failed"),
        (RuntimeError("x"), "failed"),
    ],
)
def test_errors_count_as_one_outcome(error: Exception, outcome: str) -> None:
    metrics = EngineMetrics()
    metrics.count_error(error)
    counted = {name: samples(metrics)[f"kit_requests_total/{name}"] for name in OUTCOMES}
    assert outcome_of(error) == outcome
    assert counted == {name: float(name == outcome) for name in OUTCOMES}


def test_hits_are_counted_beside_queries_and_evictions_as_they_come() -> None:
    metrics = EngineMetrics()
    metrics.count_prefix(queries=200, hits=176)
    metrics.count_prefix(queries=200, hits=0)
    for cached, evictions in ((9, 0), (7, 2), (7, 1)):
        metrics.set_load(
            queued=0,
            running=0,
            pages_used=3,
            pages_peak=5,
            pages_cached=cached,
            evictions=evictions,
        )
    seen = samples(metrics)
    assert seen["kit_prefix_cache_queries_total"] == 400
    assert seen["kit_prefix_cache_hits_total"] == 176
    assert seen["kit_prefix_cache_evictions_total"] == 3
    assert seen["kit_kv_pages_cached"] == 7


def test_two_engines_count_apart() -> None:
    first, second = EngineMetrics(), EngineMetrics()
    first.count_step(0.1)
    assert samples(first)["kit_steps_total"] == 1
    assert samples(second)["kit_steps_total"] == 0
