"""The engine: one queue, one Scheduler, and the worker groups that run what is in it."""

from __future__ import annotations

import threading
import time
import uuid
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.config.deploy import DeployConfig, executor_backend
from kit.config.runnable import check_runnable
from kit.engine.facts import collect_facts
from kit.engine.kv_view import KVView
from kit.engine.pending import Pending, RequestHandle
from kit.engine.pool import WorkerPool
from kit.engine.prefix import plan_sharing, request_keys
from kit.engine.preprocess import Preprocessor
from kit.engine.profile import profile_largest
from kit.engine.queue import RequestQueue
from kit.engine.replay import EngineFacts
from kit.engine.startup import log_start, plan_worker
from kit.engine.status import EngineStatus, GroupStatus, count_pages
from kit.errors import CancelledError, OverloadedError, RequestError, UnavailableError
from kit.executor.base import Executor
from kit.executor.start import GroupStarter
from kit.messages import WorkerInfo
from kit.modelspec.config import load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors
from kit.parallel.topology import Topology
from kit.request import GenerationRequest, GenerationResult, OnStep
from kit.scheduler.scheduler import SchedulerSnapshot
from kit.telemetry.metrics import EngineMetrics
from kit.tokenizer.buckets import largest_fitting


class ImageEngine:
    """Turns GenerationRequests into images.

    Everything but `start` may be called from any thread at any time, and nothing but `generate`
    and `close` waits. Each worker group has a thread that runs requests, one at a time or with
    `step_execution` a step of each in turn, in the order in which they were submitted. A request
    may be submitted before `start`: it is checked at once, and refused before any weight is loaded.
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
        self._sharing = plan_sharing(self._files, config, self._plan.worker)
        self.metrics = EngineMetrics()
        stage = config.stage
        self._queue = RequestQueue(
            self._plan.pools,
            stage.max_num_seqs,
            stage.max_queued_requests,
            self.metrics,
            by_steps=stage.step_execution,
        )
        self._starter = GroupStarter(
            executor_backend(config), self._plan.groups, timeout_s=stage.execute_model_timeout_s
        )
        self._pool = WorkerPool(
            len(self._plan.groups),
            self._start_group,
            self._queue,
            self.metrics,
            by_steps=stage.step_execution,
        )
        self.facts: EngineFacts | None = None
        self._info: WorkerInfo | None = None
        self._start_lock = threading.Lock()

    def start(self) -> None:
        """Load the model and begin to run requests; a second call does nothing."""
        with self._start_lock:
            if self._info is not None:
                return
            plan, infos = self._plan, self._pool.load()
            info = infos[0]
            self.facts = collect_facts(self._files, self.preprocessor.model, self.config, info)
            log_start(self.model_path, self.config, plan, info)
            self.metrics.set_pool(
                num_pages=self.num_groups * plan.worker.num_pages,
                num_bytes=sum(each.pool_bytes for each in infos),
            )
            self._info = info
            if self._queue.closing:
                self._pool.close(None)
            else:
                self._pool.serve(self.facts)

    @property
    def num_groups(self) -> int:
        """Worker groups: as many requests may run at a time."""
        return len(self._plan.groups)

    @property
    def topology(self) -> Topology:
        """How the ranks of a group share a request."""
        return self._plan.worker.topology

    @property
    def info(self) -> WorkerInfo:
        """What the workers resolved: device, dtype, backend, kernel, page size, bytes of a rank."""
        assert self._info is not None, "the engine has not been started"
        return self._info

    @property
    def version(self) -> int:
        """Grows whenever `status` or `kv_view` may have changed, but for ages."""
        return self._queue.version

    def snapshot(self) -> SchedulerSnapshot:
        """Counts of requests and pages at this moment."""
        return self._queue.snapshot()

    def status(self) -> EngineStatus:
        """What the engine is doing at this moment."""
        seen, progress = self._queue.snapshot(), self._queue.progress()
        now = time.perf_counter()
        groups = tuple(
            GroupStatus(
                index=group.index,
                state=group.state,
                running=held.running,
                admitted=held.num_admitted,
                pages=count_pages(held),
                num_restarts=group.num_restarts,
                fault=group.fault,
                # A group without a request that could have one stands still, too.
                last_progress_age_s=now - ahead.last_progress
                if held.running or held.num_admitted or seen.num_waiting
                else None,
            )
            for group, held, ahead in zip(self._pool.groups, seen.groups, progress, strict=True)
        )
        steps = [ahead.last_step for ahead in progress if ahead.last_step is not None]
        return EngineStatus(
            waiting=seen.num_waiting,
            groups=groups,
            page_bytes=self._page_bytes,
            last_step_age_s=now - max(steps) if steps else None,
            num_steps_total=sum(ahead.num_steps_total for ahead in progress),
            started=self._info is not None,
            closing=self._queue.closing,
            stopped=self._pool.has_stopped,
            fault=self._queue.fault,
        )

    def kv_view(self) -> KVView:
        """Who holds which pages at this moment, and what lies in them."""
        version, seen, requests = self._queue.view()
        return KVView(
            version=version,
            mode=self.config.stage.diffusion_kv_mode,
            page_size=self._plan.worker.page_size,
            page_bytes=self._page_bytes,
            pages=count_pages(seen),
            groups=tuple(map(count_pages, seen.groups)),
            requests=requests,
        )

    def submit(self, request: GenerationRequest, on_step: OnStep | None = None) -> RequestHandle:
        """Queue a request; `on_step` is called on its group's thread after each step.

        Raises InvalidRequestError, CapacityError, OverloadedError or UnavailableError; a refused
        request books no page.
        """
        try:
            pending = self._submit(request, on_step)
        except (RequestError, OverloadedError, UnavailableError) as error:
            self.metrics.count_error(error)
            raise
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
        return self._queue.stop(
            request_id, CancelledError(f"request {request_id} was cancelled before it ran")
        )

    def close(self, grace_s: float | None = None) -> bool:
        """Refuse what comes, end what waits, let running requests end, end the worker groups.

        Running requests are stopped before their next step once `grace_s` seconds are over; None
        lets them end. Returns False when one did not see that in time: its step is stuck.
        """
        self._queue.close()
        has_stopped = self._pool.close(grace_s)
        self._queue.end()
        return has_stopped

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

    def _start_group(self, index: int) -> Executor:
        """Load a group and run the largest request on it; errors as in `start`."""
        executor = self._starter.start(index)
        try:
            kv = self._plan.pools[index]
            profile_largest(executor, kv, self.preprocessor, self.config)
        except BaseException:
            executor.close()
            raise
        return executor

    def _submit(self, request: GenerationRequest, on_step: OnStep | None) -> Pending:
        submitted = time.perf_counter()
        prepared = self.preprocessor.prepare(request)
        request_id = request.request_id or f"img-{uuid.uuid4().hex}"
        # Here, on the caller's thread: nobody waits for the hashes but who sent the request.
        prefix = None
        if self._sharing is not None:
            prefix = request_keys(self._sharing, request, prepared)
        pending = Pending(request_id, request, prepared, on_step, submitted, prefix)
        model, sizes = self.preprocessor.model, self.preprocessor.sizes
        prefix_len = prepared.rows.layout.prefix_len
        self._queue.add(pending, partial(largest_fitting, model, sizes, prefix_len))
        return pending
