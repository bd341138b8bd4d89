"""The engine: one queue, one Scheduler, one worker group, and the thread that joins them."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.config.deploy import DeployConfig
from kit.config.runnable import check_runnable
from kit.engine.deadlines import Deadlines
from kit.engine.facts import collect_facts
from kit.engine.kv_view import KVView, view_request
from kit.engine.pending import (
    OnStep,
    Pending,
    RequestHandle,
    closing_error,
    deadline_error,
    phase_times,
)
from kit.engine.preprocess import Preprocessor
from kit.engine.profile import profile_largest
from kit.engine.progress import Progress
from kit.engine.replay import EngineFacts
from kit.engine.startup import log_start, plan_worker
from kit.engine.status import EngineStatus, count_pages
from kit.errors import (
    CancelledError,
    EngineError,
    InvalidRequestError,
    KitError,
    OverloadedError,
    RequestError,
    UnavailableError,
)
from kit.executor.inline import InlineExecutor
from kit.kv.allocation import KVAllocation
from kit.messages import WorkerInfo
from kit.modelspec.config import load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors
from kit.request import GenerationRequest, GenerationResult, StepEvent
from kit.scheduler.scheduler import Scheduler, SchedulerSnapshot
from kit.telemetry.log import get_logger
from kit.telemetry.metrics import EngineMetrics

_STOP_LIMIT_S = 10.0
"""How long `close` waits for a stopped request to see it: it looks between steps only."""

logger = get_logger("engine")


class ImageEngine:
    """Turns GenerationRequests into images.

    Everything but `start` may be called from any thread at any time, and nothing but `generate`
    and `close` waits. One thread of the engine's own runs requests, one at a time, in the order in
    which they were submitted. A request may be submitted before `start`: it is checked at once,
    and refused before any weight is loaded.
    """

    def __init__(self, model: str | Path, config: DeployConfig) -> None:
        """Check everything that can be known without weights.

        Raises ConfigError, UnsupportedError or CheckpointError.
        """
        check_runnable(config)
        self.config, self.model_path = config, Path(model)
        self._files = CheckpointFiles.open(self.model_path)
        check_tensors(self._files, load_model_config(self.model_path))
        self.preprocessor = Preprocessor(self.model_path, config)
        self._plan = plan_worker(self.preprocessor, config)
        self.metrics = EngineMetrics()
        self._executor: InlineExecutor | None = None
        self.facts: EngineFacts | None = None
        self._start_lock = threading.Lock()
        self._state = threading.Condition()  # guards all that follows
        self._scheduler = Scheduler(self._plan.kv, config.stage.max_num_seqs)
        self._pending: dict[str, Pending] = {}
        self._progress = Progress()
        self._version = 0
        self._closing = False
        self._fault: str | None = None
        self._thread = threading.Thread(target=self._loop, name="kit-engine", daemon=True)
        self._deadlines = Deadlines(self._expire)

    def start(self) -> None:
        """Load the model and begin to run requests; a second call does nothing."""
        with self._start_lock:
            if self._executor is not None:
                return
            executor = InlineExecutor(self._plan.worker)
            plan, info = self._plan, executor.info
            self.facts = collect_facts(self._files, self.preprocessor.model, self.config, info)
            log_start(self.model_path, self.config, plan, info)
            profile_largest(executor, plan, self.preprocessor, self.config)
            self.metrics.set_pool(num_pages=plan.worker.num_pages, num_bytes=info.pool_bytes)
            with self._state:
                self._progress.touch()
                self._executor = executor
                # Inside the lock, so that `close` sees a thread that it can join, or none.
                if not self._closing:
                    self._thread.start()

    @property
    def info(self) -> WorkerInfo:
        """What the worker resolved: device, dtype, backend, kernel, page size, bytes."""
        assert self._executor is not None, "the engine has not been started"
        return self._executor.info

    @property
    def version(self) -> int:
        """Grows whenever `status` or `kv_view` may have changed, but for ages."""
        return self._version

    def snapshot(self) -> SchedulerSnapshot:
        """Counts of requests and pages at this moment."""
        with self._state:
            return self._scheduler.snapshot()

    def status(self) -> EngineStatus:
        """What the engine is doing at this moment."""
        with self._state:
            seen, progress, now = self._scheduler.snapshot(), self._progress, time.perf_counter()
            return EngineStatus(
                waiting=seen.num_waiting,
                admitted=seen.num_admitted,
                running=seen.running,
                pages=count_pages(seen),
                page_bytes=self._page_bytes,
                last_step_age_s=None if progress.last_step is None else now - progress.last_step,
                last_progress_age_s=now - progress.last_progress if self._pending else None,
                num_steps_total=progress.num_steps_total,
                started=self._executor is not None,
                closing=self._closing,
                stopped=self._thread.ident is not None and not self._thread.is_alive(),
                fault=self._fault,
            )

    def kv_view(self) -> KVView:
        """Who holds which pages at this moment, and what lies in them."""
        with self._state:
            version, counts = self._version, count_pages(self._scheduler.snapshot())
            holdings = [(h, self._pending[h.request_id]) for h in self._scheduler.holdings()]
            event = self._progress.event
        return KVView(
            version=version,
            mode=self.config.stage.diffusion_kv_mode,
            page_size=self._plan.worker.page_size,
            page_bytes=self._page_bytes,
            pages=counts,
            requests=tuple(
                view_request(
                    holding,
                    pending.prepared.rows.layout,
                    pending.prepared.sampling.num_inference_steps,
                    event if holding.is_running else None,
                )
                for holding, pending in holdings
            ),
        )

    def submit(self, request: GenerationRequest, on_step: OnStep | None = None) -> RequestHandle:
        """Queue a request; `on_step` is called on the engine's thread after each step.

        Raises InvalidRequestError, CapacityError, OverloadedError or UnavailableError; a refused
        request books no page.
        """
        try:
            pending = self._submit(request, on_step)
        except (RequestError, OverloadedError, UnavailableError) as error:
            self.metrics.count_error(error)
            raise
        if pending.due is not None:
            self._deadlines.add(pending.request_id, pending.due)
        return RequestHandle(pending.request_id, pending.future)

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
        return self._stop(
            request_id, CancelledError(f"request {request_id} was cancelled before it ran")
        )

    def close(self, grace_s: float | None = None) -> bool:
        """Refuse what comes, end what waits, let the running request end, stop the thread.

        The running request is stopped before its next step once `grace_s` seconds are over; None
        lets it end. Returns False when it did not see that in time: its step is stuck.
        """
        with self._state:
            self._closing = True
            running = self._scheduler.snapshot().running
            waiting = [request_id for request_id in self._pending if request_id != running]
            self._version += 1
            self._state.notify_all()
        for request_id in waiting:
            self._stop(request_id, closing_error(request_id))
        if self._thread.is_alive():
            self._thread.join(grace_s)
        if self._thread.is_alive():
            if running is not None:
                self._stop(running, closing_error(running))
            self._thread.join(_STOP_LIMIT_S)
        self._deadlines.close()
        return not self._thread.is_alive()

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

    @property
    def _page_bytes(self) -> int:
        return 0 if self._plan.kv is None else self._plan.kv.geometry.page_bytes

    def _submit(self, request: GenerationRequest, on_step: OnStep | None) -> Pending:
        submitted = time.perf_counter()
        prepared = self.preprocessor.prepare(request)
        request_id = request.request_id or f"img-{uuid.uuid4().hex}"
        layout = prepared.rows.layout
        pending = Pending(request_id, request, prepared, on_step, submitted)
        with self._state:
            self._check_open()
            if request_id in self._pending:
                raise InvalidRequestError(
                    f"request_id {request_id!r} is already in use", param="request_id"
                )
            limit = self.config.stage.max_queued_requests
            # One of the pending runs, or will as soon as the thread looks: it does not wait.
            if len(self._pending) > limit:
                raise OverloadedError(
                    f"{limit} requests wait already (max_queued_requests); try again later",
                    retry_after_s=self._progress.mean_run_time_s(),
                )
            self._scheduler.add_request(
                request_id,
                layout,
                prepared.rows.num_rows,
                largest_size=lambda tokens: self.preprocessor.largest_size(layout, tokens),
            )
            if not self._pending:
                self._progress.touch()
            self._pending[request_id] = pending
            self._scheduling_changed()
        return pending

    def _check_open(self) -> None:
        if self._fault is not None:
            raise UnavailableError(f"the engine has stopped: {self._fault}")
        if self._closing:
            raise UnavailableError("the engine is shutting down and takes no more requests")

    def _stop(self, request_id: str, error: KitError) -> bool:
        """End a waiting request with `error`, or have the running one stopped by it."""
        with self._state:
            pending = self._pending.get(request_id)
            if pending is None:
                return False
            if pending.stop_error is None:
                pending.stop_error = error
            if not self._scheduler.abort(request_id):
                return True
            del self._pending[request_id]
            self._scheduling_changed()
        self._fail(pending, error)
        return True

    def _expire(self, request_id: str) -> None:
        with self._state:
            pending = self._pending.get(request_id)
        # The id may be that of a younger request.
        if pending and pending.due is not None and pending.due <= time.perf_counter():
            self._stop(request_id, deadline_error(pending))

    def _scheduling_changed(self) -> None:
        """Follow a change of the Scheduler, with the lock held."""
        if self._scheduler.snapshot().running is not None:
            self._scheduler.schedule()  # Books the pages of those behind the running one.
        seen = self._scheduler.snapshot()
        self.metrics.set_load(
            queued=seen.num_waiting + seen.num_admitted,
            running=0 if seen.running is None else 1,
            pages_used=seen.num_pages_used,
            pages_peak=seen.peak_pages_used,
        )
        self._version += 1
        self._state.notify_all()

    def _loop(self) -> None:
        try:
            while (turn := self._next()) is not None:
                self._run(*turn)
        # Not only Exception: whatever ends this thread, nobody may wait for it in vain.
        except BaseException as error:
            logger.critical("the engine's thread has stopped", exc_info=error)
            with self._state:
                self._fault = f"{type(error).__name__}: {error}"
                left = list(self._pending)
            for request_id in left:
                self._stop(
                    request_id, UnavailableError(f"request {request_id}: the engine has stopped")
                )

    def _next(self) -> tuple[Pending, KVAllocation | None] | None:
        """Wait for the next request whose turn it is; None when closing."""
        with self._state:
            while not self._closing:
                scheduled = self._scheduler.schedule()
                if scheduled is not None:
                    self._progress.begin()
                    self._scheduling_changed()
                    return self._pending[scheduled.request_id], scheduled.allocation
                self._state.wait()
            return None

    def _run(self, pending: Pending, allocation: KVAllocation | None) -> None:
        """Run one scheduled request; its pages are back before its future is done."""
        outcome: GenerationResult | KitError = UnavailableError(
            f"request {pending.request_id}: the engine has stopped while it ran"
        )
        started = time.perf_counter()
        try:
            outcome = self._execute(pending, allocation, started)
        finally:
            done = isinstance(outcome, GenerationResult)
            with self._state:
                self._scheduler.finish(pending.request_id)
                del self._pending[pending.request_id]
                self._progress.end(time.perf_counter() - started if done else None)
                self._scheduling_changed()
            if isinstance(outcome, GenerationResult):
                self.metrics.count_finished(phase_times(outcome.metrics))
                pending.future.set_result(outcome)
            else:
                self._fail(pending, outcome)

    def _execute(
        self, pending: Pending, allocation: KVAllocation | None, started: float
    ) -> GenerationResult | KitError:
        def on_step(event: StepEvent) -> None:
            with self._state:
                self._progress.step(event)
                self._version += 1
            self.metrics.count_step(event.step_time_s)
            if pending.on_step is not None:
                pending.on_step(event)

        assert self._executor is not None, "the thread starts after the executor"
        assert self.facts is not None, "the thread starts after the facts are collected"
        run = pending.to_run(allocation)
        try:
            result = self._executor.run(run, on_step, pending.is_stopped)
            return pending.to_result(run, result, started, self.facts)
        except CancelledError as caught:
            return pending.stopped_error(caught)
        except KitError as caught:
            return caught
        except Exception as caught:
            logger.exception("request %s failed", run.request_id)
            error = EngineError(
                f"request {run.request_id} failed: {type(caught).__name__}: {caught}"
            )
            error.__cause__ = caught
            return error

    def _fail(self, pending: Pending, error: KitError) -> None:
        logger.info("request %s ended: %s", pending.request_id, error)
        self.metrics.count_error(error)
        pending.future.set_exception(error)
