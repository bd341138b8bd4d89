"""A worker group of one rank that runs in the engine's own process."""

from __future__ import annotations

from kit.messages import RunRequest, RunResult, WorkerConfig, WorkerInfo
from kit.worker.runner import IsCancelled, ModelRunner, OnStep


class InlineExecutor:
    """The worker group seen from outside, without a process boundary."""

    def __init__(self, config: WorkerConfig) -> None:
        """Load the model; errors as in ModelRunner."""
        self._runner = ModelRunner(config)

    @property
    def info(self) -> WorkerInfo:
        return self._runner.info

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """Run one request to its end; errors as in ModelRunner.run."""
        return self._runner.run(run, on_step, is_cancelled)
