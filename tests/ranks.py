"""Real processes that meet as the ranks of one worker group."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from kit.parallel.group import Mesh, join_mesh
from kit.parallel.topology import Topology

OnRank = Callable[..., Any]
"""A module-level function: it gets the rank's mesh, then the arguments of `run_ranks`."""

LIMIT_S = 120


class Processes:
    """Processes that start once and are the ranks of one group after another."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count, self._meetings = pool, count, 0

    def run(self, topology: Topology, folder: Path, on_rank: OnRank, *args: object) -> list[Any]:
        """Run `on_rank(mesh, *args)` on every rank; results in rank order."""
        assert topology.size == self._count, "ranks wait for one another: a process for each"
        return self.meet(folder, _run, topology, on_rank, args)

    def meet(self, folder: Path, on_process: OnRank, *args: object) -> list[Any]:
        """Run `on_process(rank, rendezvous, *args)` on every process; they meet in `folder`."""
        self._meetings += 1
        rendezvous = f"file://{folder / f'meeting{self._meetings}'}"
        calls = [
            self._pool.submit(on_process, rank, rendezvous, *args) for rank in range(self._count)
        ]
        return [call.result(timeout=LIMIT_S) for call in calls]


@contextmanager
def processes(count: int) -> Iterator[Processes]:
    """Start so many processes of one thread each; they end with the block."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        yield Processes(pool, count)


def run_ranks(topology: Topology, folder: Path, on_rank: OnRank, *args: object) -> list[Any]:
    """Run `on_rank(mesh, *args)` on every rank, in new processes; results in rank order.

    They meet in a file in `folder`, which is given to one call only.
    """
    with processes(topology.size) as started:
        return started.run(topology, folder, on_rank, *args)


def _run(
    rank: int, rendezvous: str, topology: Topology, on_rank: OnRank, args: tuple[object, ...]
) -> Any:
    # A rank that failed is not waited for much longer than any exchange here takes.
    limit = timedelta(seconds=LIMIT_S / 2)
    mesh: Mesh = join_mesh(topology, rank, torch.device("cpu"), rendezvous, timeout=limit)
    try:
        return on_rank(mesh, *args)
    finally:
        mesh.close()
