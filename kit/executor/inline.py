"""A worker group of one rank that runs in the engine's own process."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from kit.executor.base import IsCancelled, OnStep
from kit.messages import RunRequest, RunResult, Tick, WorkerConfig, WorkerInfo
from kit.request import StepEvent
from kit.worker.runner import ModelRunner


class InlineExecutor:
    """An Executor without a process boundary: it is never lost, and cannot be ended."""

    def __init__(self, config: WorkerConfig) -> None:
        """Load the model; errors as in ModelRunner."""
        self._runner = _load(config)

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


def _load(config: WorkerConfig) -> ModelRunner:
    """Load on a thread that ends.

    OpenMP gives each thread that computes helpers of its own, which stay as long as it does. Those
    of a loading thread that lives on count as busy: barriers of the thread that runs the steps then
    sleep instead of spinning, and a step on two cores takes twice as long.
    """
    loaded: Future[ModelRunner] = Future()

    def load() -> None:
        try:
            loaded.set_result(ModelRunner(config))
        except BaseException as error:  # carried to the caller, whatever it is
            loaded.set_exception(error)

    thread = threading.Thread(target=load, name="kit-load", daemon=True)
    thread.start()
    runner = loaded.result()
    thread.join()
    return runner
