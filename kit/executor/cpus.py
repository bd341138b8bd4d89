"""Which processors and how many threads each rank of this machine gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

THREADS_VARIABLE = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class CpuShare:
    """What one rank may use of the host's processors."""

    cpus: tuple[int, ...]
    """Empty: any."""

    num_threads: int | None
    """Threads of one operation; None leaves it to torch, or to the environment."""

    def __str__(self) -> str:
        cpus = ",".join(map(str, self.cpus)) or "any"
        return f"CPUs {cpus}, {self.num_threads or 'default'} threads"


def share_cpus(
    num_ranks: int, *, on_cpu: bool, usable: tuple[int, ...], environment: Mapping[str, str]
) -> tuple[CpuShare, ...]:
    """Share the `usable` processors among ranks: equal numbers, neighbours together.

    on_cpu: the ranks compute on them, so each keeps to its own; ranks of accelerators may run
    anywhere. One rank alone is left as it is, and a number of threads in the environment stays.
    """
    if num_ranks == 1:
        return (CpuShare((), None),)
    each = len(usable) // num_ranks
    # Pinned to fewer processors than they have threads, ranks would wait for themselves.
    threads = None if THREADS_VARIABLE in environment else max(1, each)
    if not on_cpu or not each:
        return (CpuShare((), threads),) * num_ranks
    return tuple(
        CpuShare(usable[rank * each : (rank + 1) * each], threads) for rank in range(num_ranks)
    )


def usable_cpus() -> tuple[int, ...]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return ()
