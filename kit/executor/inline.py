"""A worker group of one rank that runs in the engine's own process."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from kit.messages import RunRequest, RunResult, WorkerConfig, WorkerInfo
from kit.worker.runner import IsCancelled, ModelRunner, OnStep


class InlineExecutor:
    """The worker group seen from outside, without a process boundary."""

    def __init__(self, config: WorkerConfig) -> None:
        """Load the model; errors as in ModelRunner."""
        self._runner = _load(config)

    @property
    def info(self) -> WorkerInfo:
        return self._runner.info

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """Run one request to its end; errors as in ModelRunner.run."""
        return self._runner.run(run, on_step, is_cancelled)


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
