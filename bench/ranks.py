"""Processes that meet as the ranks of one worker group, for a measurement."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from kit.errors import UnsupportedError, WorkerError
from kit.parallel.group import Mesh, join_mesh
from kit.parallel.topology import Topology
from kit.platforms.cpu import CpuPlatform
from kit.platforms.cuda import CudaPlatform

OnRank = Callable[..., Any]
"""A module-level function: it gets the rank's mesh and device, then the arguments."""

_EXCHANGE_LIMIT = timedelta(minutes=9)

_LEAVING_S = 30.0
"""What a process may take to give a card's memory back: the next ones need it."""


def num_cards() -> int:
    """Return how many NVIDIA cards there are; raises UnsupportedError for less than two."""
    count = torch.cuda.device_count()
    if count < 2:
        raise UnsupportedError(f"this workload needs two NVIDIA cards or more; {count} are here")
    return count


def run_on_ranks(
    topology: Topology, device: str, on_rank: OnRank, *args: object, limit_s: float = 540.0
) -> list[Any]:
    """Run `on_rank(mesh, device, *args)` on every rank, in processes of their own.

    Returns the results in the order of ranks. device: cpu, or cuda, where rank i gets card i.
    Raises WorkerError with the first error of a rank, or after `limit_s`; no process is left.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{Path(folder, 'meeting')}"
        processes, ends = [], []
        for rank in range(topology.size):
            end, other = context.Pipe(duplex=False)
            given = (other, topology, rank, device, rendezvous, on_rank, args)
            processes.append(context.Process(target=_run, args=given, daemon=True))
            ends.append(end)
            processes[-1].start()
            other.close()
        try:
            return _collect(ends, limit_s)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            for process in processes:
                process.join(timeout=_LEAVING_S)
                process.kill()
                process.join(timeout=_LEAVING_S)


def _collect(ends: list[Connection], limit_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ends):
        waiting = [end for rank, end in enumerate(ends) if rank not in results]
        ready = wait(waiting, limit_s)
        if not ready:
            raise WorkerError(f"a rank has not ended after {limit_s:g} s")
        for end in ready:
            assert isinstance(end, Connection), "only connections were given"
            rank = ends.index(end)
            try:
                is_error, results[rank] = end.recv()
            except EOFError:
                raise WorkerError(f"rank {rank} ended without a result") from None
            if is_error:
                raise WorkerError(f"rank {rank} failed:\n{results[rank]}")
    return [results[rank] for rank in range(len(ends))]


def _run(
    end: Connection,
    topology: Topology,
    rank: int,
    device_type: str,
    rendezvous: str,
    on_rank: OnRank,
    args: tuple[object, ...],
) -> None:
    result: tuple[bool, Any]
    try:
        backend = CpuPlatform.collective_backend
        if device_type == "cpu":
            torch.set_num_threads(1)
            device = torch.device("cpu")
        else:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // topology.size))
            device = torch.device(device_type, rank)
            torch.cuda.set_device(device)
            backend = CudaPlatform.collective_backend
        mesh: Mesh = join_mesh(
            topology, rank, device, rendezvous, backend=backend, timeout=_EXCHANGE_LIMIT
        )
        result = (False, on_rank(mesh, device, *args))
    except BaseException:
        result = (True, traceback.format_exc())
    end.send(result)
    # At once: to leave the group in order would wait for graphs that hold its exchanges, and for
    # ranks that failed.
    os._exit(0)
