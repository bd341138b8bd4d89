"""One worker group of an engine: its thread, its executor, and its new start when it is lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from kit.engine.queue import RequestQueue, Turn
from kit.engine.replay import EngineFacts
from kit.engine.status import GroupState
from kit.errors import CancelledError, EngineError, GroupLostError, KitError, UnavailableError
from kit.executor.base import Executor
from kit.messages import RunRequest, RunResult, Tick
from kit.request import GenerationResult, OnStep, StepEvent
from kit.telemetry.log import get_logger
from kit.telemetry.metrics import EngineMetrics

MAX_STRIKES = 5
"""A group that was lost, or did not start, so often without a step in between is given up."""

_LOOK_S = 1.0
"""How often an idle group looks whether its ranks are there."""

_PAUSE_S = 1.0
"""Before the second start in a row; the pause doubles with each one."""

logger = get_logger("engine")


class WorkerGroup:
    """Runs requests of the queue on a thread of its own, one at a time or in turn by steps."""

    def __init__(
        self,
        index: int,
        start: Callable[[int], Executor],
        queue: RequestQueue,
        metrics: EngineMetrics,
        on_down: Callable[[BaseException], None],
        *,
        by_steps: bool,
    ) -> None:
        """`start` loads the group; `on_down` is told why it is given up; by_steps: as the queue."""
        self.index, self._start, self._queue, self._metrics = index, start, queue, metrics
        self._on_down, self._by_steps = on_down, by_steps
        self.state: GroupState = "starting"
        self.num_restarts = 0
        self.fault: str | None = None
        """Why it was lost the last time."""

        self._strikes = 0
        self._executor: Executor | None = None
        self._facts: EngineFacts | None = None
        self.thread = threading.Thread(target=self._serve, name=f"kit-engine-{index}", daemon=True)

    def load(self) -> Executor:
        """Start the group for the first time; errors as its executor's."""
        self._executor = self._start(self.index)
        self.state = "ready"
        return self._executor

    def serve(self, facts: EngineFacts) -> None:
        """Begin to run requests."""
        self._facts = facts
        self.thread.start()

    def end_ranks(self) -> None:
        """End the ranks, whatever they do; a run ends with that. From any thread."""
        executor = self._executor
        if executor is not None:
            executor.close()

    def _serve(self) -> None:
        try:
            while not self._queue.closing or self._queue.turns(self.index):
                executor = self._executor or self._restart()
                if executor is not None:
                    self._look(executor)
                elif self.state == "down":
                    return
        # Not only Exception: whatever ends this thread, nobody may wait for it in vain.
        except BaseException as error:
            logger.critical("the thread of group %d has stopped", self.index, exc_info=error)
            self._queue.fail_all(f"{type(error).__name__}: {error}")
            for turn in self._queue.turns(self.index):
                self._queue.finish(self.index, turn, _stopped_error(turn))
        finally:
            self.end_ranks()

    def _look(self, executor: Executor) -> None:
        """Run or advance the next request, if there is one."""
        try:
            executor.check()
            turn = self._queue.take(self.index, _LOOK_S)
            if turn is not None:
                outcome = self._execute(executor, turn)
                if outcome is not None:
                    self._queue.finish(self.index, turn, outcome)
        except GroupLostError as error:
            self._lose(executor, error)

    def _execute(self, executor: Executor, turn: Turn) -> GenerationResult | KitError | None:
        """Return how a request ended; None if it has made a step and goes on.

        Raises GroupLostError, and then it has not ended.
        """
        pending = turn.pending

        def on_step(event: StepEvent) -> None:
            self._strikes = 0
            self._queue.step(self.index, event)
            # A request that runs once more tells nobody the steps that it has told already.
            if pending.on_step is not None and event.step > pending.num_steps_told:
                pending.num_steps_told = event.step
                pending.on_step(event)

        assert self._facts is not None, "the thread starts after the facts are collected"
        run = pending.to_run(turn.allocation)
        try:
            if self._by_steps:
                result = _advance(executor, run, turn, on_step)
            else:
                result = executor.run(run, on_step, pending.is_stopped)
            if result is None:
                return None
            return pending.to_result(run, result, turn.started, self._facts)
        except CancelledError as caught:
            return pending.stopped_error(caught)
        except GroupLostError:
            raise
        except KitError as caught:
            return caught
        except Exception as caught:
            logger.exception("request %s failed", run.request_id)
            error = EngineError(
                f"request {run.request_id} failed: {type(caught).__name__}: {caught}"
            )
            error.__cause__ = caught
            return error

    def _lose(self, executor: Executor, error: GroupLostError) -> None:
        self._executor, self.state, self.fault = None, "restarting", str(error)
        self._strikes += 1
        self._queue.close_group(self.index)
        logger.error("group %d is lost: %s", self.index, error)
        executor.close()
        # The youngest first, so that the oldest is first in line again.
        for turn in reversed(self._queue.turns(self.index)):
            self._queue.lose(self.index, turn, error)

    def _restart(self) -> Executor | None:
        """Load the group again; None when that failed, or was not tried."""
        if self._strikes >= MAX_STRIKES:
            self.state = "down"
            logger.critical("group %d is given up: %s", self.index, self.fault)
            self._on_down(EngineError(f"group {self.index} was given up: {self.fault}"))
            return None
        pause = 0.0 if self._strikes == 1 else _PAUSE_S * 2 ** (self._strikes - 2)
        if self._queue.wait_closing(pause):
            return None
        logger.info(
            "group %d starts again, try %d of %d", self.index, self._strikes, MAX_STRIKES - 1
        )
        self.num_restarts += 1
        self._metrics.count_restart()
        try:
            self._executor = self._start(self.index)
        except Exception as error:
            self._strikes += 1
            self.fault = f"{type(error).__name__}: {error}"
            logger.error("group %d did not start: %s", self.index, self.fault)
            return None
        self.state = "ready"
        self._queue.open_group(self.index)
        logger.info("group %d is ready again", self.index)
        return self._executor


def _advance(executor: Executor, run: RunRequest, turn: Turn, on_step: OnStep) -> RunResult | None:
    """Make a request's next step; None, or its result if that was all."""
    is_stopped = turn.pending.is_stopped()
    answer = executor.advance(Tick(run.request_id, run if turn.is_first else None, is_stopped))
    if isinstance(answer, RunResult):
        return answer
    try:
        on_step(answer)
    except BaseException:
        with contextlib.suppress(CancelledError):
            executor.advance(Tick(run.request_id, None, is_stopped=True))
        raise
    return None


def _stopped_error(turn: Turn) -> UnavailableError:
    return UnavailableError(
        f"request {turn.pending.request_id}: the engine has stopped while it ran"
    )
