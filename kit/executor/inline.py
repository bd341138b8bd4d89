"""A worker group of one rank that runs in the engine's own process."""

from __future__ import annotations

from kit.messages import IsCancelled, RunRequest, RunResult, Tick, WorkerConfig, WorkerInfo
from kit.request import OnStep, StepEvent
from kit.worker.runner import ModelRunner


class InlineExecutor:
    """An Executor without a process boundary: it is never lost, and cannot be ended."""

    def __init__(self, config: WorkerConfig) -> None:
        """Load the model; errors as in ModelRunner."""
        self._runner = ModelRunner(config)

    @property
    def info(self) -> WorkerInfo:
        return self._runner.info

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """As in Executor, but what is no KitError is raised as it is."""
        return self._runner.run(run, on_step, is_cancelled)

    def advance(self, tick: Tick) -> StepEvent | RunResult:
        """As `run`."""
        return self._runner.advance(tick)

    def check(self) -> None:
        """Nothing can be gone."""

    def close(self) -> None:
        """Nothing to end: the model goes with this object."""
