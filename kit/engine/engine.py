"""The engine: one queue, one Scheduler, one worker group, and the thread that joins them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.config.deploy import DeployConfig
from kit.config.runnable import check_runnable
from kit.engine.preprocess import PreparedRequest, Preprocessor
from kit.engine.startup import log_start, plan_worker
from kit.errors import CancelledError, EngineError, InvalidRequestError, KitError
from kit.executor.inline import InlineExecutor
from kit.kv.allocation import KVAllocation
from kit.messages import RunRequest, RunResult, WorkerInfo
from kit.modelspec.config import load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors
from kit.request import GenerationRequest, GenerationResult, RequestMetrics, StepEvent
from kit.scheduler.scheduler import Scheduler, SchedulerSnapshot
from kit.telemetry.log import get_logger

OnStep = Callable[[StepEvent], None]

logger = get_logger("engine")


@dataclass
class _Pending:
    """A submitted request until its future is done."""

    prepared: PreparedRequest
    trace_path: str | None
    on_step: OnStep | None
    submitted: float
    future: Future[GenerationResult] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class RequestHandle:
    """A submitted request: its id, and the future of its result."""

    request_id: str
    future: Future[GenerationResult]


class ImageEngine:
    """Turns GenerationRequests into images.

    `submit`, `cancel` and `generate` may be called from any thread. One thread of the engine's
    own runs requests, one at a time, in the order in which they were submitted. A request may be
    submitted before `start`: it is checked at once, and refused before any weight is loaded.
    """

    def __init__(self, model: str | Path, config: DeployConfig) -> None:
        """Check everything that can be known without weights.

        Raises ConfigError, UnsupportedError or CheckpointError.
        """
        check_runnable(config)
        self.config, self.model_path = config, Path(model)
        check_tensors(CheckpointFiles.open(self.model_path), load_model_config(self.model_path))
        self.preprocessor = Preprocessor(self.model_path, config)
        largest = max(self.preprocessor.sizes, key=lambda size: size.height * size.width)
        self._plan = plan_worker(self.model_path, self.preprocessor.model, largest, config)
        self._scheduler = Scheduler(self._plan.kv, config.stage.max_num_seqs)
        self._executor: InlineExecutor | None = None
        self._pending: dict[str, _Pending] = {}
        self._state = threading.Condition()  # guards the scheduler, _pending and _closing
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="kit-engine", daemon=True)

    def start(self) -> None:
        """Load the model and begin to run requests; a second call does nothing."""
        if self._executor is None:
            self._executor = InlineExecutor(self._plan.worker)
            log_start(self.model_path, self.config, self._plan, self._executor.info)
            self._thread.start()

    @property
    def info(self) -> WorkerInfo:
        """What the worker resolved: device, dtype, backend, kernel, page size, bytes."""
        assert self._executor is not None, "the engine has not been started"
        return self._executor.info

    def snapshot(self) -> SchedulerSnapshot:
        """Counts of requests and pages at this moment."""
        with self._state:
            return self._scheduler.snapshot()

    def submit(self, request: GenerationRequest, on_step: OnStep | None = None) -> RequestHandle:
        """Queue a request; `on_step` is called on the engine's thread after each step.

        Raises InvalidRequestError or CapacityError; a refused request books no page.
        """
        prepared = self.preprocessor.prepare(request)
        request_id = request.request_id or f"img-{uuid.uuid4().hex}"
        pending = _Pending(prepared, request.trace_path, on_step, time.perf_counter())
        layout, num_rows = prepared.rows.layout, prepared.rows.num_rows
        with self._state:
            if self._closing:
                raise EngineError("the engine is shutting down")
            if request_id in self._pending:
                raise InvalidRequestError(
                    f"request_id {request_id!r} is already in use", param="request_id"
                )
            self._scheduler.add_request(
                request_id,
                layout,
                num_rows,
                largest_size=lambda tokens: self.preprocessor.largest_size(layout, tokens),
            )
            self._pending[request_id] = pending
            self._state.notify_all()
        return RequestHandle(request_id, pending.future)

    def generate(
        self, request: GenerationRequest, on_step: OnStep | None = None
    ) -> GenerationResult:
        """Submit a request and wait for its image; errors as in submit and start, or the run's."""
        handle = self.submit(request, on_step)
        self.start()
        try:
            return handle.future.result()
        except KeyboardInterrupt:
            self.cancel(handle.request_id)
            raise

    def cancel(self, request_id: str) -> bool:
        """Cancel a request: a waiting one at once, a running one before its next step.

        Returns False when the request is not known (any more).
        """
        with self._state:
            pending = self._pending.get(request_id)
            if pending is None:
                return False
            pending.cancelled.set()
            if self._scheduler.abort(request_id):
                del self._pending[request_id]
                pending.future.set_exception(
                    CancelledError(f"request {request_id} was cancelled before it ran")
                )
            return True

    def close(self) -> None:
        """Cancel what waits, let the running request end, stop the thread."""
        with self._state:
            self._closing = True
            running = self._scheduler.snapshot().running
            waiting = [request_id for request_id in self._pending if request_id != running]
            self._state.notify_all()
        for request_id in waiting:
            self.cancel(request_id)
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _loop(self) -> None:
        while True:
            with self._state:
                scheduled = self._scheduler.schedule()
                while scheduled is None:
                    if self._closing:
                        return
                    self._state.wait()
                    scheduled = self._scheduler.schedule()
                pending = self._pending[scheduled.request_id]
            self._run(scheduled.request_id, pending, scheduled.allocation)

    def _run(self, request_id: str, pending: _Pending, allocation: KVAllocation | None) -> None:
        """Run one scheduled request; its pages are back before its future is done."""
        prepared, started = pending.prepared, time.perf_counter()
        run = RunRequest(
            request_id, prepared.rows, prepared.sampling, allocation, pending.trace_path
        )
        error: BaseException | None = None
        result: RunResult | None = None
        try:
            on_step = pending.on_step or _ignore_step
            assert self._executor is not None, "the thread starts after the executor"
            result = self._executor.run(run, on_step, pending.cancelled.is_set)
        except KitError as caught:
            error = caught
            logger.info("request %s ended: %s", request_id, caught)
        except Exception as caught:
            error = EngineError(f"request {request_id} failed: {type(caught).__name__}: {caught}")
            error.__cause__ = caught
            logger.exception("request %s failed", request_id)
        with self._state:
            self._scheduler.finish(request_id)
            del self._pending[request_id]
        if result is None:
            assert error is not None
            pending.future.set_exception(error)
        else:
            pending.future.set_result(_result(pending, run, result, started))


def _ignore_step(event: StepEvent) -> None:
    del event


def _result(
    pending: _Pending, run: RunRequest, result: RunResult, started: float
) -> GenerationResult:
    prepared = pending.prepared
    metrics = RequestMetrics(
        queue_time_s=started - pending.submitted,
        first_step_time_s=result.step_times_s[0],
        step_times_s=result.step_times_s,
        decode_time_s=result.decode_time_s,
        total_time_s=time.perf_counter() - pending.submitted,
        num_rows=run.rows.num_rows,
        num_pages=run.allocation.num_pages if run.allocation else 0,
        kv_bytes=result.kv_bytes,
        tokens_written=result.tokens_written,
    )
    return GenerationResult(
        request_id=run.request_id,
        image=result.image,
        sampling=prepared.sampling,
        template=prepared.template,
        metrics=metrics,
        warnings=prepared.warnings,
    )
