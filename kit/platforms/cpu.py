"""The CPU as a device: memory from the operating system, bounded by the container's limit."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil

from kit.platforms.memory import HostMemory

_CGROUP = Path("/sys/fs/cgroup")


class CpuPlatform:
    """A Platform whose device memory is the machine's main memory."""

    name = "cpu"
    compute_capability = None
    collective_backend = "gloo"

    def memory(self) -> HostMemory:
        """Available memory, or what the control group (v2) still allows if that is less."""
        available = int(psutil.virtual_memory().available)
        limit, used = _read_bytes("memory.max"), _read_bytes("memory.current")
        if limit is None or used is None:
            return HostMemory(available)
        return HostMemory(max(0, min(available, limit - used)))

    def peak_memory_bytes(self) -> int:
        """Peak of the process's resident memory."""
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            # Where there is no /proc, ru_maxrss counts bytes.
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Not ru_maxrss: on Linux it starts at what the parent held when it started this process.
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024

    def synchronize(self) -> None:
        """Nothing to wait for: operations return when they are done."""


def _read_bytes(name: str) -> int | None:
    try:
        return int((_CGROUP / name).read_text())
    except (OSError, ValueError):  # no control group, or "max": no limit
        return None
