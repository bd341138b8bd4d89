"""A submitted request until its future is done, and the result that it ends with."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from kit.engine.preprocess import PreparedRequest
from kit.engine.replay import EngineFacts, make_record
from kit.errors import CancelledError, DeadlineError, KitError, UnavailableError
from kit.kv.allocation import KVAllocation
from kit.kv.prefix import PrefixKeys
from kit.messages import RunRequest, RunResult
from kit.request import GenerationRequest, GenerationResult, OnStep, RequestMetrics


def _running_future() -> Future[GenerationResult]:
    """A future that its receiver cannot cancel: only the engine ends a request."""
    future: Future[GenerationResult] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True)
class RequestHandle:
    """What a caller holds of a submitted request: its id, and the future of its result."""

    request_id: str
    future: Future[GenerationResult]


@dataclass
class Pending:
    """A request that the engine has taken."""

    request_id: str
    request: GenerationRequest
    prepared: PreparedRequest
    on_step: OnStep | None
    submitted: float
    """Reading of time.perf_counter."""

    prefix: PrefixKeys | None = None
    """Keys of what it may share; None without prefix caching."""

    future: Future[GenerationResult] = field(default_factory=_running_future)
    stop_error: KitError | None = None
    """Why it must not make another step; the first reason stays."""

    num_steps_told: int = 0
    """Steps that `on_step` has heard of."""

    num_losses: int = 0
    """How often its worker group was lost while it ran."""

    @property
    def due(self) -> float | None:
        """When its time is up, a reading of time.perf_counter; None means never."""
        limit = self.request.timeout_s
        return None if limit is None else self.submitted + limit

    def is_stopped(self) -> bool:
        return self.stop_error is not None

    def to_run(self, allocation: KVAllocation | None) -> RunRequest:
        """Return what the worker needs."""
        return RunRequest(
            request_id=self.request_id,
            rows=self.prepared.rows,
            sampling=self.prepared.sampling,
            allocation=allocation,
            trace_path=self.request.trace_path,
            num_partial_images=self.request.num_partial_images,
            references=self.request.images,
        )

    def stopped_error(self, seen: CancelledError) -> KitError:
        """Return what its caller is told when the worker saw the wish to stop."""
        if self.stop_error is None or isinstance(self.stop_error, CancelledError):
            return seen
        return type(self.stop_error)(f"{self.stop_error} ({seen})")

    def to_result(
        self, run: RunRequest, result: RunResult, started: float, facts: EngineFacts
    ) -> GenerationResult:
        """Return what its caller gets for a run that began at `started`."""
        metrics = RequestMetrics(
            queue_time_s=started - self.submitted,
            reference_time_s=result.reference_time_s,
            first_step_time_s=result.step_times_s[0],
            step_times_s=result.step_times_s,
            preview_time_s=result.preview_time_s,
            decode_time_s=result.decode_time_s,
            total_time_s=time.perf_counter() - self.submitted,
            prefix_tokens=run.rows.layout.prefix_len,
            reference_tokens=sum(span.num_tokens for span in run.rows.layout.references),
            target_tokens=run.rows.layout.target_len,
            cached_tokens=run.allocation.num_cached_tokens if run.allocation else 0,
            shared_tokens=run.allocation.num_shared_tokens if run.allocation else 0,
            num_rows=run.rows.num_rows,
            num_pages=run.allocation.num_pages if run.allocation else 0,
            kv_bytes=result.kv_bytes,
            tokens_written=result.tokens_written,
            peak_memory_bytes=result.peak_memory_bytes,
        )
        return GenerationResult(
            request_id=self.request_id,
            image=result.image,
            sampling=self.prepared.sampling,
            template=self.prepared.template,
            metrics=metrics,
            replay=make_record(self.request, self.prepared, facts, result.image),
            warnings=self.prepared.warnings,
        )


def phase_times(metrics: RequestMetrics) -> dict[str, float]:
    """Return the seconds of each phase, by the names of telemetry.metrics.PHASES."""
    return {
        "queue": metrics.queue_time_s,
        "reference": metrics.reference_time_s,
        "denoise": sum(metrics.step_times_s),
        "preview": metrics.preview_time_s,
        "decode": metrics.decode_time_s,
        "total": metrics.total_time_s,
    }


def closing_error(request_id: str) -> UnavailableError:
    """Return the error of a request that ends because the engine shuts down."""
    return UnavailableError(f"request {request_id}: the engine is shutting down")


def deadline_error(pending: Pending) -> DeadlineError:
    """Return the error of a request whose time is up while it waits or runs."""
    return DeadlineError(
        f"request {pending.request_id}: timeout_s is {pending.request.timeout_s:g} and that time "
        "is up, the queue included; send it when the server is less busy, or raise timeout_s"
    )
