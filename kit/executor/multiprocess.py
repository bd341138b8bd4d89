"""A worker group whose ranks are processes on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from kit.executor.cpus import CpuShare
from kit.executor.rank import RankProcess
from kit.executor.remote import RemoteExecutor
from kit.messages import StartRank, WorkerConfig
from kit.telemetry.log import get_logger

logger = get_logger("executor")


class MultiprocessExecutor(RemoteExecutor):
    """An Executor: a process for each rank, which ends with this one."""

    def __init__(
        self,
        configs: Sequence[WorkerConfig],
        shares: Sequence[CpuShare],
        *,
        name: str,
        timeout_s: float,
    ) -> None:
        """Start a process for each configuration and wait until all have loaded."""
        super().__init__(name, timeout_s)
        # Where its ranks meet: a file that they make, in a folder of this start's own.
        self._folder = tempfile.TemporaryDirectory(prefix="kit-group-", ignore_cleanup_errors=True)

        def launch() -> None:
            # Not Path.as_uri: torch takes what follows file:// as it stands, %20 included.
            meeting = f"file://{self._folder.name}/meeting" if len(configs) > 1 else None
            for rank, (config, share) in enumerate(zip(configs, shares, strict=True)):
                own = replace(config, rendezvous=meeting)
                level = logger.getEffectiveLevel()
                start = StartRank(own, f"{name} rank {rank}", level, share.cpus)
                process = RankProcess(start, share)
                self._ranks.append(process)
                logger.info("%s: process %d, %s", start.name, process.pid, share)

        self._load(launch)

    def _release(self) -> None:
        self._folder.cleanup()
