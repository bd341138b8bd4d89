"""A worker group whose ranks are processes of their own on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from kit.errors import GroupLostError
from kit.executor.base import IsCancelled, OnStep
from kit.executor.cpus import CpuShare
from kit.executor.rank import RankGoneError, RankProcess, end_all
from kit.messages import (
    Failure,
    FromRank,
    Loaded,
    RunRequest,
    RunResult,
    StartRank,
    StopRun,
    WorkerConfig,
    WorkerInfo,
)
from kit.request import StepEvent
from kit.telemetry.log import get_logger
from kit.worker.failure import to_error

_LOOK_S = 0.05
"""How often a run is looked at while its ranks say nothing: for a wish to stop, for the time."""

_OTHERS_S = 10.0
"""How long ranks may go on when one of them has failed: they wait for it in an exchange."""

logger = get_logger("executor")


class MultiprocessExecutor:
    """An Executor; rank 0 of the group leads: its steps and its result are the group's."""

    def __init__(
        self,
        configs: Sequence[WorkerConfig],
        shares: Sequence[CpuShare],
        *,
        name: str,
        timeout_s: float,
    ) -> None:
        """Start a process for each configuration and wait until all have loaded.

        timeout_s: how long a run may go without a sign of rank 0. Raises what ModelRunner raises,
        or GroupLostError for what is no KitError and for a process that ends.
        """
        self.name = name
        self._timeout_s = timeout_s
        self._ranks: list[RankProcess] = []
        # Where its ranks meet: a file that they make, in a folder of this start's own.
        self._folder = tempfile.TemporaryDirectory(prefix="kit-group-", ignore_cleanup_errors=True)
        meeting = Path(self._folder.name, "meeting").as_uri()
        level = logger.getEffectiveLevel()
        try:
            for rank, (config, share) in enumerate(zip(configs, shares, strict=True)):
                own = replace(config, rendezvous=meeting if len(configs) > 1 else None)
                start = StartRank(own, f"{name} rank {rank}", level, share.cpus)
                self._ranks.append(RankProcess(start, share))
                logger.info("%s: process %d, %s", start.name, self._ranks[-1].pid, share)
            self._infos = self._load()
        except RankGoneError as error:
            self.close()
            raise GroupLostError(f"{error} while it loaded") from error
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> WorkerInfo:
        return self._infos[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order."""
        return tuple(rank.pid for rank in self._ranks)

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """As in Executor. An exception of `on_step` stops the run and is raised when it ends."""
        try:
            return self._run(run, on_step, is_cancelled)
        except (GroupLostError, RankGoneError) as error:
            end_all(self._ranks, wait_s=0.0)
            self._folder.cleanup()
            raise GroupLostError(f"request {run.request_id}: {error}") from error

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
        self._folder.cleanup()

    def _load(self) -> tuple[WorkerInfo, ...]:
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
        ends: dict[int, RunResult | Failure] = {}
        interruption: BaseException | None = None
        is_stopping = False
        seen = time.monotonic()
        while len(ends) < len(self._ranks):
            for rank, message in self._messages(_LOOK_S):
                if isinstance(message, Failure) and to_error(message) is None:
                    # Others wait for this rank in an exchange that it will never make.
                    raise self._error(rank, message)
                if isinstance(message, RunResult | Failure):
                    ends[rank] = message
                elif isinstance(message, StepEvent) and interruption is None:
                    try:
                        on_step(message)
                    except BaseException as error:  # raised below, when the ranks have ended
                        interruption = error
                seen = time.monotonic()
            if not is_stopping and (interruption is not None or is_cancelled()):
                is_stopping = True
                for process in self._ranks:
                    process.send(StopRun(run.request_id))
            self._check_time(ends, time.monotonic() - seen)
        if interruption is not None:
            raise interruption
        for rank, end in sorted(ends.items()):
            if isinstance(end, Failure):
                raise self._error(rank, end)
        leaders = ends[0]
        assert isinstance(leaders, RunResult), "no rank has failed"
        return leaders

    def _messages(self, timeout_s: float | None) -> Iterator[tuple[int, FromRank]]:
        """Yield one message of each rank that has some, waiting for it; raises RankGoneError."""
        connections = {rank.connection: at for at, rank in enumerate(self._ranks)}
        for ready in wait(list(connections), timeout_s):
            at = connections[ready]  # type: ignore[index]  # only connections were given
            yield at, self._ranks[at].receive()

    def _check_time(self, ends: dict[int, RunResult | Failure], silent_s: float) -> None:
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
        return GroupLostError(f"{self.name} rank {rank}: {failure.kind}: {failure.message}")
