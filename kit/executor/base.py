"""A worker group seen from outside."""

from __future__ import annotations

from typing import Protocol

from kit.messages import IsCancelled, RunRequest, RunResult, Tick, WorkerInfo
from kit.request import OnStep, StepEvent


class Executor(Protocol):
    """The ranks that run a request at a time, or a step at a time of several; made loaded.

    One thread only.
    """

    @property
    def info(self) -> WorkerInfo:
        """What the first rank resolved and loaded."""
        ...

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """Run one request to its end; errors as in ModelRunner.run.

        Raises GroupLostError when a rank is gone, hangs, or raised what is no KitError: then
        nothing runs any more, and `close` is all that may be called.
        """
        ...

    def advance(self, tick: Tick) -> StepEvent | RunResult:
        """Make one step of a request, or its image; errors as in `run`, of this request only."""
        ...

    def check(self) -> None:
        """Between requests: raise GroupLostError when a rank is gone."""
        ...

    def close(self) -> None:
        """End every rank, whatever it does; a second call does nothing. From any thread."""
        ...
