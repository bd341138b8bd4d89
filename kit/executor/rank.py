"""The process of one rank on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from kit.executor.cpus import THREADS_VARIABLE, CpuShare
from kit.executor.link import END_S, RankLink, import_path
from kit.messages import StartRank


class RankProcess(RankLink):
    """A process, linked by a pair of sockets that nobody else can open."""

    def __init__(self, start: StartRank, share: CpuShare) -> None:
        """Start the process and tell it what to load; it answers later."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kit.worker.process", str(theirs.fileno())],
                env=_environment(share),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C in a terminal is for the process that was started there
            )
            super().__init__(start.name, Connection(ours.detach()))
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_gone(self) -> bool:
        """As in RankLink."""
        return self._process.poll() is not None

    def describe_end(self) -> str:
        """As in RankLink."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        code = self._process.returncode
        if code is None:
            return f"{self.name} has closed its connection"
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"{self.name} (process {self.pid}) has ended {how}"

    def end(self, deadline: float) -> None:
        """As in RankLink."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._process.kill()
        self._process.wait()


def _environment(share: CpuShare) -> dict[str, str]:
    own = {"PYTHONPATH": import_path()}
    if share.num_threads is not None:
        own[THREADS_VARIABLE] = str(share.num_threads)
    # gloo would listen on the address of the host's name, and anybody could connect.
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {**loopback, **os.environ, **own}
