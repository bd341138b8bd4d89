"""All requests that are not done: who waits, who runs where, how each one ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from kit.engine.deadlines import Deadlines
from kit.engine.kv_view import RequestView, shared_pages, view_request
from kit.engine.pending import Pending, closing_error, deadline_error, phase_times
from kit.engine.progress import Progress, mean_run_time_s
from kit.errors import InvalidRequestError, KitError, OverloadedError, UnavailableError
from kit.kv.allocation import KVAllocation
from kit.kv.manager import KVCacheManager, LargestSize
from kit.request import GenerationResult, StepEvent
from kit.scheduler.scheduler import Holding, Scheduler, SchedulerSnapshot
from kit.telemetry.log import get_logger
from kit.telemetry.metrics import EngineMetrics

logger = get_logger("engine")


@dataclass(frozen=True)
class Turn:
    """A request that a group must run now, or advance by a step."""

    pending: Pending
    allocation: KVAllocation | None
    started: float
    """When it began to run, a reading of time.perf_counter."""

    is_first: bool = True
    """Whether no step was given to it before."""


class RequestQueue:
    """The Scheduler, the requests it knows and the lock around both; any thread may call.

    Pages of a request are back before its future is done.
    """

    def __init__(
        self,
        pools: Sequence[KVCacheManager | None],
        max_num_seqs: int,
        max_queued: int,
        metrics: EngineMetrics,
        *,
        by_steps: bool,
    ) -> None:
        """One pool for each group; `max_queued` requests may wait behind those that run.

        max_num_seqs, by_steps: see Scheduler.
        """
        self._max_queued, self._metrics = max_queued, metrics
        self._changed = threading.Condition()  # guards all that follows
        self._scheduler = Scheduler(pools, max_num_seqs, by_steps=by_steps)
        self._by_steps = by_steps
        self._num_places = len(pools) * (max_num_seqs if by_steps else 1)
        self._turns: tuple[dict[str, Turn], ...] = tuple({} for _ in pools)
        self._pending: dict[str, Pending] = {}
        self._progress = tuple(Progress() for _ in pools)
        self._num_evicted = 0
        """Cached pages that the metrics have counted as evicted."""

        self._version = 0
        self._closing = False
        self._fault: str | None = None
        self._started = False
        self._deadlines = Deadlines(self._expire)

    @property
    def version(self) -> int:
        """Grows whenever a snapshot or a view may have changed, but for ages."""
        return self._version

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def fault(self) -> str | None:
        """Why nothing is served any more, other than `close`."""
        return self._fault

    def add(self, pending: Pending, largest_size: LargestSize) -> None:
        """Take a request.

        Raises InvalidRequestError, CapacityError, OverloadedError or UnavailableError.
        """
        rows = pending.prepared.rows
        with self._changed:
            self._check_open()
            if pending.request_id in self._pending:
                raise InvalidRequestError(
                    f"request_id {pending.request_id!r} is already in use", param="request_id"
                )
            # As many as have a place run, or will as soon as a thread looks: they do not wait.
            if len(self._pending) >= self._max_queued + self._num_places:
                raise OverloadedError(
                    f"{self._max_queued} requests wait already (max_queued_requests); try again "
                    "later",
                    retry_after_s=mean_run_time_s(self._progress) / self._num_places,
                )
            self._scheduler.add_request(
                pending.request_id,
                rows.layout,
                rows.num_rows,
                prefix=pending.prefix,
                largest_size=largest_size,
            )
            for group, seen in zip(self._progress, self.snapshot().groups, strict=True):
                if not seen.running:
                    group.touch()
            self._pending[pending.request_id] = pending
            self._scheduling_changed()
        if pending.due is not None:
            self._deadlines.add(pending.request_id, pending.due)

    def stop(self, request_id: str, error: KitError) -> bool:
        """End a waiting request with `error`, or have the running one stopped by it.

        Returns False when the request is not known (any more).
        """
        with self._changed:
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

    def start(self) -> None:
        """Groups take requests from now on."""
        with self._changed:
            self._started = True
            for progress in self._progress:
                progress.touch()
            self._scheduling_changed()

    def take(self, group: int, wait_s: float) -> Turn | None:
        """Return what a group must run or advance; None when there was nothing for so long.

        Closing, nothing begins; by steps what runs still goes on.
        """
        with self._changed:
            turn = self._next(group)
            if turn is None and not self._closing:
                self._changed.wait(wait_s)
                turn = self._next(group)
            return turn

    def turns(self, group: int) -> tuple[Turn, ...]:
        """Return what a group runs, the oldest first."""
        with self._changed:
            return tuple(self._turns[group].values())

    def step(self, group: int, event: StepEvent) -> None:
        """The running request of a group made a step."""
        with self._changed:
            self._progress[group].step(event)
            self._version += 1
        self._metrics.count_step(event.step_time_s)

    def finish(self, group: int, turn: Turn, outcome: GenerationResult | KitError) -> None:
        """End a running request."""
        pending = turn.pending
        with self._changed:
            is_done = isinstance(outcome, GenerationResult)
            self._scheduler.finish(pending.request_id, is_good=is_done)
            del self._pending[pending.request_id], self._turns[group][pending.request_id]
            self._progress[group].end(time.perf_counter() - turn.started if is_done else None)
            self._scheduling_changed()
        if isinstance(outcome, GenerationResult):
            self._metrics.count_finished(phase_times(outcome.metrics))
            pending.future.set_result(outcome)
        else:
            self._fail(pending, outcome)

    def lose(self, group: int, turn: Turn, error: KitError) -> None:
        """A group was lost with a request that it ran, which runs once more, first in line.

        It ends with `error` if that happens for the second time, and otherwise if it was to stop.
        """
        pending = turn.pending
        with self._changed:
            pending.num_losses += 1
            ends = pending.stop_error
            if pending.num_losses > 1:
                ends = type(error)(f"{error}; the second group lost with it, so it is given up")
            if ends is None and self._closing:
                ends = closing_error(pending.request_id)
            if ends is None:
                self._scheduler.requeue(pending.request_id)
                del self._turns[group][pending.request_id]
                self._progress[group].end(None)
                self._scheduling_changed()
        if ends is not None:
            self.finish(group, turn, ends)

    def close_group(self, group: int) -> None:
        """A group takes no requests; those booked there wait again."""
        with self._changed:
            self._scheduler.close_group(group)
            self._scheduling_changed()

    def open_group(self, group: int) -> None:
        """A group takes requests again."""
        with self._changed:
            self._scheduler.open_group(group)
            self._progress[group].touch()
            self._scheduling_changed()

    def wait_closing(self, wait_s: float) -> bool:
        """Return whether the queue is closing; waits so long for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, wait_s)

    def close(self) -> None:
        """Take no more requests, and end those that wait."""
        with self._changed:
            self._closing = True
            running = self._scheduler.snapshot().running
            waiting = [request_id for request_id in self._pending if request_id not in running]
            self._version += 1
            self._changed.notify_all()
        for request_id in waiting:
            self.stop(request_id, closing_error(request_id))

    def stop_running(self) -> None:
        """Have all running requests stopped, because of closing."""
        for request_id in self.snapshot().running:
            self.stop(request_id, closing_error(request_id))

    def end(self) -> None:
        """Watch no time limits any more."""
        self._deadlines.close()

    def fail_all(self, fault: str) -> None:
        """Nothing is served any more: end every request, and refuse those that come."""
        with self._changed:
            self._fault = self._fault or fault
            left = list(self._pending)
        for request_id in left:
            self.stop(request_id, UnavailableError(f"request {request_id}: the engine has stopped"))

    def snapshot(self) -> SchedulerSnapshot:
        """Counts of requests and pages at this moment."""
        with self._changed:
            return self._scheduler.snapshot()

    def progress(self) -> tuple[Progress, ...]:
        """How far each group is at this moment."""
        with self._changed:
            return tuple(map(copy, self._progress))

    def view(self) -> tuple[int, SchedulerSnapshot, tuple[RequestView, ...]]:
        """Return the version, the counts and who holds which pages, all of one moment."""
        with self._changed:
            version, seen = self._version, self._scheduler.snapshot()
            holdings = [(h, self._pending[h.request_id]) for h in self._scheduler.holdings()]
            events = [progress.event for progress in self._progress]
        shared = shared_pages(holding for holding, _ in holdings)

        def view(holding: Holding, pending: Pending) -> RequestView:
            return view_request(
                holding,
                pending.prepared.rows.layout,
                pending.prepared.sampling.num_inference_steps,
                events[holding.group] if holding.is_running else None,
                shared=shared[holding.group],
                first_page=sum(group.num_pages for group in seen.groups[: holding.group]),
            )

        return version, seen, tuple(view(*item) for item in holdings)

    def _next(self, group: int) -> Turn | None:
        turns, begun = self._turns[group], None
        while not self._closing and (scheduled := self._scheduler.schedule(group)) is not None:
            self._progress[group].begin()
            self._scheduling_changed()
            pending = self._pending[scheduled.request_id]
            self._count_prefix(pending, scheduled.allocation)
            begun = Turn(pending, scheduled.allocation, time.perf_counter())
            turns[scheduled.request_id] = begun
        if not self._by_steps:
            return begun
        request_id = self._scheduler.next_step(group)
        if request_id is None:
            return None
        turn = turns[request_id]
        turns[request_id] = replace(turn, is_first=False)
        return turn

    def _count_prefix(self, pending: Pending, allocation: KVAllocation | None) -> None:
        if pending.prefix is not None and allocation is not None:
            num_rows = len(allocation.page_tables)
            self._metrics.count_prefix(
                queries=num_rows * pending.prepared.rows.layout.prefix_len,
                hits=num_rows * allocation.num_cached_tokens,
            )

    def _check_open(self) -> None:
        if self._fault is not None:
            raise UnavailableError(f"the engine has stopped: {self._fault}")
        if self._closing:
            raise UnavailableError("the engine is shutting down and takes no more requests")

    def _expire(self, request_id: str) -> None:
        with self._changed:
            pending = self._pending.get(request_id)
        # The id may be that of a younger request.
        if pending and pending.due is not None and pending.due <= time.perf_counter():
            self.stop(request_id, deadline_error(pending))

    def _scheduling_changed(self) -> None:
        """Follow a change of the Scheduler, with the lock held."""
        if self._started:
            self._scheduler.admit()
        seen = self._scheduler.snapshot()
        self._metrics.set_load(
            queued=seen.num_waiting + seen.num_admitted,
            running=len(seen.running),
            pages_used=seen.num_pages_used,
            pages_peak=seen.peak_pages_used,
            pages_cached=seen.num_pages_cached,
            evictions=seen.num_pages_evicted - self._num_evicted,
        )
        self._num_evicted = seen.num_pages_evicted
        self._version += 1
        self._changed.notify_all()

    def _fail(self, pending: Pending, error: KitError) -> None:
        logger.info("request %s ended: %s", pending.request_id, error)
        self._metrics.count_error(error)
        pending.future.set_exception(error)
