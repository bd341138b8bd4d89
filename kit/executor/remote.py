"""Worker groups whose ranks are processes of their own, on this machine or elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait

from kit.errors import CancelledError, GroupLostError
from kit.executor.link import RankGoneError, RankLink, end_all
from kit.messages import (
    Failure,
    FromRank,
    IsCancelled,
    Loaded,
    RunRequest,
    RunResult,
    StopRun,
    Tick,
    WorkerInfo,
)
from kit.request import OnStep, StepEvent
from kit.worker.failure import to_error

_LOOK_S = 0.05
"""How often a run is looked at while its ranks say nothing: for a wish to stop, for the time."""

_OTHERS_S = 10.0
"""How long ranks may go on when one of them has failed: they wait for it in an exchange."""

_DYING_S = 0.2
"""What a process that was killed may take until it counts as ended."""


class RemoteExecutor:
    """An Executor; rank 0 of the group leads: its steps and its result are the group's.

    Subclasses start the ranks.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        """timeout_s: how long a run may go without a sign of a rank."""
        self.name = name
        self._timeout_s = timeout_s
        self._ranks: list[RankLink] = []
        self._infos: Sequence[WorkerInfo] = ()

    @property
    def info(self) -> WorkerInfo:
        return self._infos[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order."""
        return tuple(rank.pid for rank in self._ranks)

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """As in Executor. An exception of `on_step` stops the run and is raised when it ends."""
        with self._ending_if_lost(run.request_id):
            return self._run(run, on_step, is_cancelled)

    def advance(self, tick: Tick) -> StepEvent | RunResult:
        """As in Executor."""
        with self._ending_if_lost(tick.request_id):
            for rank in self._ranks:
                rank.send(tick)
            return self._answer(_every_step, _nothing)

    def check(self) -> None:
        """As in Executor."""
        try:
            for rank in self._ranks:
                rank.check()
        except RankGoneError as error:
            raise GroupLostError(str(error)) from error

    def close(self) -> None:
        """As in Executor."""
        end_all(self._ranks)
        self._release()

    @contextmanager
    def _ending_if_lost(self, request_id: str) -> Iterator[None]:
        """End all ranks when one is lost; raises GroupLostError that names the request."""
        try:
            yield
        except (GroupLostError, RankGoneError) as error:
            end_all(self._ranks, wait_s=0.0)
            self._release()
            raise GroupLostError(f"request {request_id}: {error}") from error

    def _release(self) -> None:
        """Give back what the ranks needed beside themselves."""

    def _load(self, launch: Callable[[], None]) -> None:
        """Start ranks by `launch`, which puts them into `_ranks`, and wait until all have loaded.

        Raises what ModelRunner raises, or GroupLostError for what is no KitError and for a process
        that ends; no rank is left then.
        """
        try:
            launch()
            for rank in self._ranks:
                rank.limit_waits(self._timeout_s)
            self._infos = self._await_loaded()
        except RankGoneError as error:
            self.close()
            raise GroupLostError(f"{error} while it loaded") from error
        except BaseException:
            self.close()
            raise

    def _await_loaded(self) -> tuple[WorkerInfo, ...]:
        infos: dict[int, WorkerInfo] = {}
        while len(infos) < len(self._ranks):
            for rank, message in self._messages(None):
                if isinstance(message, Failure):
                    raise self._error(rank, message)
                assert isinstance(message, Loaded), "it answers StartRank first"
                infos[rank] = message.info
        return tuple(infos[rank] for rank in range(len(infos)))

    def _run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        for process in self._ranks:
            process.send(run)
        interruption: BaseException | None = None
        is_stopping = False

        def hear(step: StepEvent) -> bool:
            nonlocal interruption
            if interruption is None:
                try:
                    on_step(step)
                except BaseException as error:  # raised below, when the ranks have ended
                    interruption = error
            return False

        def look() -> None:
            nonlocal is_stopping
            if not is_stopping and (interruption is not None or is_cancelled()):
                is_stopping = True
                for process in self._ranks:
                    process.send(StopRun(run.request_id))

        try:
            result = self._answer(hear, look)
        except CancelledError:
            if interruption is not None:
                raise interruption from None
            raise
        if interruption is not None:
            raise interruption
        assert isinstance(result, RunResult), "no step is the last answer to a request"
        return result

    def _answer(
        self, is_last: Callable[[StepEvent], bool], look: Callable[[], None]
    ) -> StepEvent | RunResult:
        """Wait until each rank has answered, and return what the leader did.

        Told whether a step is a rank's last answer by `is_last`; calls `look` in between. Raises
        the first rank's error, or GroupLostError.
        """
        ends: dict[int, FromRank] = {}
        seen = time.monotonic()
        while len(ends) < len(self._ranks):
            for rank, message in self._messages(_LOOK_S):
                if isinstance(message, Failure) and to_error(message) is None:
                    # Others wait for this rank in an exchange that it will never make.
                    raise self._error(rank, message)
                if not isinstance(message, StepEvent) or is_last(message):
                    ends[rank] = message
                seen = time.monotonic()
            look()
            self._check_time(ends, time.monotonic() - seen)
        for rank, end in sorted(ends.items()):
            if isinstance(end, Failure):
                raise self._error(rank, end)
        leaders = ends[0]
        assert isinstance(leaders, StepEvent | RunResult), "no rank has failed"
        return leaders

    def _messages(self, timeout_s: float | None) -> Iterator[tuple[int, FromRank]]:
        """Yield one message of each rank that has some, waiting for it; raises RankGoneError."""
        connections = {rank.connection: at for at, rank in enumerate(self._ranks)}
        for ready in wait(list(connections), timeout_s):
            at = connections[ready]  # type: ignore[index]  # only connections were given
            yield at, self._ranks[at].receive()

    def _check_time(self, ends: Mapping[int, FromRank], silent_s: float) -> None:
        """Raise GroupLostError when the ranks that still run must be taken for stuck."""
        for rank, end in ends.items():
            if isinstance(end, Failure) and silent_s > _OTHERS_S:
                raise GroupLostError(
                    f"{self.name} rank {rank} failed ({end.kind}: {end.message}) and others did "
                    f"not end within {_OTHERS_S:g} s"
                )
        if silent_s > self._timeout_s:
            raise GroupLostError(
                f"{self.name} has said nothing for {silent_s:.1f} s (execute_model_timeout_s is "
                f"{self._timeout_s:g}) and was killed"
            )

    def _error(self, rank: int, failure: Failure) -> Exception:
        error = to_error(failure)
        if error is not None and not isinstance(error, GroupLostError):
            return error
        # A rank fails in an exchange when another one dies, and may say so first.
        time.sleep(_DYING_S)
        gone = "".join(f"; {one.describe_end()}" for one in self._ranks if one.is_gone())
        return GroupLostError(f"{self.name} rank {rank}: {failure.kind}: {failure.message}{gone}")


def _every_step(step: StepEvent) -> bool:
    """A tick ends with its step."""
    return step.step > 0


def _nothing() -> None:
    """The wish to stop comes with a tick."""
