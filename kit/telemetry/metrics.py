"""What an engine counts for Prometheus; each engine has a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from kit.errors import (
    CancelledError,
    DeadlineError,
    OverloadedError,
    RequestError,
    UnavailableError,
)

OUTCOMES: Final = (
    "ok",
    "refused",
    "overloaded",
    "cancelled",
    "deadline",
    "unavailable",
    "failed",
)
"""How requests end; `refused` and `overloaded` never entered the queue."""

PHASES: Final = ("queue", "reference", "denoise", "preview", "decode", "total")

_STEP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class EngineMetrics:
    """The engine calls these where it does what they count; any thread may read."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._queue = Gauge(
            "kit_queue_requests", "Requests that wait for their turn.", registry=registry
        )
        self._running = Gauge("kit_running_requests", "Requests that run.", registry=registry)
        self._pages_used = Gauge(
            "kit_kv_pages_used", "KV pages that requests hold.", registry=registry
        )
        self._pages_peak = Gauge(
            "kit_kv_pages_peak", "Most KV pages held at one moment so far.", registry=registry
        )
        self._pages_cached = Gauge(
            "kit_kv_pages_cached",
            "KV pages that no request holds and later ones may find a prefix in.",
            registry=registry,
        )
        self._prefix_queries = Counter(
            "kit_prefix_cache_queries",
            "Prefix tokens of requests that began to run, all rows of a rank.",
            registry=registry,
        )
        self._prefix_hits = Counter(
            "kit_prefix_cache_hits",
            "Prefix tokens whose keys and values were found, all rows of a rank.",
            registry=registry,
        )
        self._evictions = Counter(
            "kit_prefix_cache_evictions",
            "Cached KV pages that were handed out for something else.",
            registry=registry,
        )
        self._pool_pages = Gauge(
            "kit_kv_pool_pages", "KV pages of the pool, held or not.", registry=registry
        )
        self._pool_bytes = Gauge(
            "kit_kv_pool_bytes",
            "Bytes that the loaded page pool takes, held or not.",
            registry=registry,
        )
        self._steps = Counter("kit_steps", "Denoising steps of all requests.", registry=registry)
        self._step_seconds = Histogram(
            "kit_step_seconds", "Denoising steps.", registry=registry, buckets=_STEP_BUCKETS
        )
        self._request_seconds = Histogram(
            "kit_request_seconds",
            "Finished requests by phase: queue, reference, denoise, preview, decode, and total.",
            ["phase"],
            registry=registry,
            buckets=_REQUEST_BUCKETS,
        )
        self._requests = Counter(
            "kit_requests", "Requests by how they ended.", ["outcome"], registry=registry
        )
        self._restarts = Counter(
            "kit_worker_restarts",
            "Times that a worker group was started again after it was lost.",
            registry=registry,
        )
        # A series that appears with its first event hides that event from rate().
        for phase in PHASES:
            self._request_seconds.labels(phase)
        for outcome in OUTCOMES:
            self._requests.labels(outcome)

    def set_load(
        self,
        *,
        queued: int,
        running: int,
        pages_used: int,
        pages_peak: int,
        pages_cached: int,
        evictions: int,
    ) -> None:
        """Say how full the queue and the pool are; evictions: since it was said last."""
        self._queue.set(queued)
        self._running.set(running)
        self._pages_used.set(pages_used)
        self._pages_peak.set(pages_peak)
        self._pages_cached.set(pages_cached)
        self._evictions.inc(evictions)

    def count_prefix(self, *, queries: int, hits: int) -> None:
        """Count prefix tokens that were looked for, and those of them that were found."""
        self._prefix_queries.inc(queries)
        self._prefix_hits.inc(hits)

    def set_pool(self, *, num_pages: int, num_bytes: int) -> None:
        """Say what the loaded pool holds; both 0 in dense_legacy."""
        self._pool_pages.set(num_pages)
        self._pool_bytes.set(num_bytes)

    def count_step(self, seconds: float) -> None:
        """Count a denoising step."""
        self._steps.inc()
        self._step_seconds.observe(seconds)

    def count_finished(self, seconds_by_phase: Mapping[str, float]) -> None:
        """Count a request that gave its image; the keys are PHASES."""
        self._requests.labels("ok").inc()
        for phase, seconds in seconds_by_phase.items():
            self._request_seconds.labels(phase).observe(seconds)

    def count_error(self, error: BaseException) -> None:
        """Count a request that was refused or gave no image."""
        self._requests.labels(outcome_of(error)).inc()

    def count_restart(self) -> None:
        """Count a worker group that starts again."""
        self._restarts.inc()

    def exposition(self) -> tuple[bytes, str]:
        """Return every metric in Prometheus' text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def outcome_of(error: BaseException) -> str:
    """Name how a request ended, one of OUTCOMES."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (RequestError, "refused"),
        (OverloadedError, "overloaded"),
        (CancelledError, "cancelled"),
        (DeadlineError, "deadline"),
        (UnavailableError, "unavailable"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "failed")
