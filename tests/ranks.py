"""Real processes that meet as the ranks of one worker group."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from kit.parallel.group import Mesh, join_mesh
from kit.parallel.topology import Topology

OnRank = Callable[..., Any]
"""A module-level function: it gets the rank's mesh, then the arguments of `run_ranks`."""


def run_ranks(topology: Topology, folder: Path, on_rank: OnRank, *args: object) -> list[Any]:
    """Run `on_rank(mesh, *args)` on every rank, in processes of their own; results in rank order.

    They meet in a file in `folder`, which is given to one call only.
    """
    rendezvous = f"file://{folder / 'meeting'}"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(topology.size, mp_context=context) as pool:
        calls = [
            pool.submit(_run, topology, rank, rendezvous, on_rank, args)
            for rank in range(topology.size)
        ]
        return [call.result(timeout=120) for call in calls]


def _run(
    topology: Topology, rank: int, rendezvous: str, on_rank: OnRank, args: tuple[object, ...]
) -> Any:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    mesh: Mesh = join_mesh(topology, rank, torch.device("cpu"), rendezvous)
    try:
        return on_rank(mesh, *args)
    finally:
        mesh.close()
