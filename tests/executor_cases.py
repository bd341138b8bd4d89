"""A worker group of the golden checkpoint by any executor, and requests for it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from kit.config.deploy import DeployConfig, ExecutorBackend
from kit.engine.preprocess import Preprocessor
from kit.engine.startup import StartPlan, plan_worker
from kit.executor.base import Executor
from kit.executor.start import GroupStarter
from kit.messages import RunRequest
from kit.modelspec.deployment import load_config
from kit.request import GenerationRequest, SamplingParams

PATIENCE_S = 60
PAGED = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}

_ids = itertools.count()


class Group:
    """The plan of one worker group, and the requests that it may run."""

    def __init__(self, folder: Path, **stage: object) -> None:
        self.config: DeployConfig = load_config(folder, stage_overrides={"0": {**PAGED, **stage}})
        self.preprocessor = Preprocessor(folder, self.config)
        self.plan: StartPlan = plan_worker(self.preprocessor, self.config)

    @contextlib.contextmanager
    def start(
        self, backend: ExecutorBackend, *, timeout_s: float = PATIENCE_S
    ) -> Iterator[Executor]:
        """Load the group; it is closed at the end."""
        executor = GroupStarter(backend, self.plan.groups, timeout_s=timeout_s).start(0)
        try:
            yield executor
        finally:
            executor.close()

    @contextlib.contextmanager
    def request(self, num_steps: int = 2, **changes: object) -> Iterator[RunRequest]:
        """Book the pages of a request with guidance, and give them back at the end."""
        sampling = SamplingParams(num_inference_steps=num_steps, seed=3)
        prepared = self.preprocessor.prepare(GenerationRequest("a red vase", sampling))
        name, rows = f"r{next(_ids)}", prepared.rows
        kv = self.plan.kv
        assert kv is not None
        allocation = kv.reserve(name, rows.num_rows, rows.layout.kv_len)
        assert allocation is not None
        run = RunRequest(name, rows, prepared.sampling, allocation, None)
        try:
            yield replace(run, **changes)  # type: ignore[arg-type]
        finally:
            kv.release(allocation)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what must happen; a busy machine may be slow."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """A Ray cluster of this machine alone, started and ended."""
    import ray

    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=80 << 20,
    )
    try:
        yield
    finally:
        ray.shutdown()
