"""Starts worker groups by the executor that the deployment names."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kit.config.deploy import ExecutorBackend
from kit.executor.base import Executor
from kit.executor.cpus import share_cpus, usable_cpus
from kit.messages import WorkerConfig


class GroupStarter:
    """Starts the groups of one deployment, each as often as it is lost."""

    def __init__(
        self,
        backend: ExecutorBackend,
        groups: Sequence[Sequence[WorkerConfig]],
        *,
        timeout_s: float,
    ) -> None:
        """`groups` has a configuration for each rank of each group."""
        self._backend, self._groups, self._timeout_s = backend, groups, timeout_s
        self._shares = share_cpus(
            sum(map(len, groups)),
            on_cpu=groups[0][0].device == "cpu",
            usable=usable_cpus(),
            environment=os.environ,
        )

    def start(self, group: int) -> Executor:
        """Return a loaded group; errors as its executor's."""
        configs = self._groups[group]
        # Torch is imported in this process only where a rank runs in it.
        if self._backend == "inline":
            from kit.executor.inline import InlineExecutor

            return InlineExecutor(configs[0])
        name = f"group {group}"
        if self._backend == "ray":
            from kit.executor.ray_group import RayExecutor

            return RayExecutor(configs, name=name, timeout_s=self._timeout_s)
        from kit.executor.multiprocess import MultiprocessExecutor

        first = sum(map(len, self._groups[:group]))
        return MultiprocessExecutor(
            configs,
            self._shares[first : first + len(configs)],
            name=name,
            timeout_s=self._timeout_s,
        )
