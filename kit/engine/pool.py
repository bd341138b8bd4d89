"""The worker groups of one deployment, started, watched and ended together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from kit.engine.group import WorkerGroup
from kit.engine.queue import RequestQueue
from kit.engine.replay import EngineFacts
from kit.executor.base import Executor
from kit.messages import WorkerInfo
from kit.telemetry.metrics import EngineMetrics

_STOP_LIMIT_S = 10.0
"""How long `close` waits for a stopped request to see it: it looks between steps only."""

_END_LIMIT_S = 10.0
"""How long threads may take to end once their ranks have been ended."""


class WorkerPool:
    """One queue, several groups: as many requests run at a time as groups are ready."""

    def __init__(
        self,
        num_groups: int,
        start: Callable[[int], Executor],
        queue: RequestQueue,
        metrics: EngineMetrics,
        *,
        by_steps: bool,
    ) -> None:
        """`start` loads the group of an index; by_steps: as the queue."""
        self._queue, self._metrics = queue, metrics
        self.groups: Sequence[WorkerGroup] = tuple(
            WorkerGroup(index, start, queue, metrics, self._is_down, by_steps=by_steps)
            for index in range(num_groups)
        )
        self._downs = threading.Lock()

    def load(self) -> tuple[WorkerInfo, ...]:
        """Load all groups at once and say what the first rank of each is.

        Raises the first error, with nothing left running.
        """
        loading = [_load_in_thread(group) for group in self.groups]
        try:
            executors = [one.result() for _, one in loading]
        except BaseException:
            self._end_ranks()
            raise
        for thread, _ in loading:
            thread.join()
        return tuple(executor.info for executor in executors)

    def serve(self, facts: EngineFacts) -> None:
        """Begin to run requests."""
        self._queue.start()
        for group in self.groups:
            group.serve(facts)

    @property
    def is_serving(self) -> bool:
        """Whether `serve` was called."""
        return self.groups[-1].thread.ident is not None

    @property
    def has_stopped(self) -> bool:
        """Whether it served, and no thread runs any more."""
        return self.is_serving and not any(group.thread.is_alive() for group in self.groups)

    def close(self, grace_s: float | None) -> bool:
        """End the groups; the queue is closing.

        Running requests are stopped before their next step once `grace_s` seconds are over; None
        lets them end. Returns False when one did not see that in time and cannot be ended.
        """
        if not self.is_serving:
            self._end_ranks()
            return True
        if self._join(grace_s):
            return True
        self._queue.stop_running()
        if self._join(_STOP_LIMIT_S):
            return True
        self._end_ranks()
        return self._join(_END_LIMIT_S)

    def _join(self, limit_s: float | None) -> bool:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        for group in self.groups:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            group.thread.join(left)
        return self.has_stopped

    def _end_ranks(self) -> None:
        for group in self.groups:
            group.end_ranks()

    def _is_down(self, error: BaseException) -> None:
        with self._downs:
            if all(group.state == "down" for group in self.groups):
                self._queue.fail_all(f"every worker group is down; the last one: {error}")


def _load_in_thread(group: WorkerGroup) -> tuple[threading.Thread, Future[Executor]]:
    """Load on a thread that does not keep the process: Ctrl-C must end it while weights load.

    The thread ends, too: OpenMP gives each thread that computes helpers of its own, which stay as
    long as it does. Those of a loading thread that lives on count as busy: barriers of the thread
    that runs the steps then sleep instead of spinning, and a step on two cores takes twice as long.
    """
    loaded: Future[Executor] = Future()

    def load() -> None:
        try:
            loaded.set_result(group.load())
        except BaseException as error:  # carried to the caller, whatever it is
            loaded.set_exception(error)

    thread = threading.Thread(target=load, name=f"kit-load-{group.index}", daemon=True)
    thread.start()
    return thread, loaded
