"""The process of one rank, as the engine's process holds it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import kit
from kit.executor.cpus import CpuShare
from kit.messages import FromRank, Shutdown, StartRank, ToRank

_END_S = 5.0
"""What a rank that was asked to end gets for it, before it is killed."""


class RankGoneError(Exception):
    """The process has ended, or closed its end of the connection."""


class RankProcess:
    """Owns a process and the connection to it, a pair of sockets that nobody else can open.

    The process ends when the connection does: whatever ends this process ends it, too.
    """

    def __init__(self, start: StartRank, share: CpuShare) -> None:
        """Start the process and tell it what to load; it answers later."""
        self.name = start.name
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kit.worker.process", str(theirs.fileno())],
                env=_environment(share),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C in a terminal is for the process that was started there
            )
            self.connection = Connection(ours.detach())
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToRank) -> None:
        """Raises RankGoneError."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise RankGoneError(self.describe_end()) from error

    def receive(self) -> FromRank:
        """Wait for a message; raises RankGoneError."""
        try:
            return cast(FromRank, self.connection.recv())
        except (EOFError, OSError) as error:
            raise RankGoneError(self.describe_end()) from error

    def check(self) -> None:
        """Raise RankGoneError if the process has ended."""
        if self._process.poll() is not None:
            raise RankGoneError(self.describe_end())

    def describe_end(self) -> str:
        """Say how the process ended, or that it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        if code is None:
            return f"{self.name} has closed its connection"
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"{self.name} (process {self.pid}) has ended {how}"

    def ask_to_end(self) -> None:
        """Have it end after the step it makes."""
        with contextlib.suppress(OSError):  # it is gone
            self.connection.send(Shutdown())

    def end(self, deadline: float) -> None:
        """Wait for its end until `deadline`, a reading of time.monotonic, then kill it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._process.kill()
        self._process.wait()


def end_all(ranks: Sequence[RankProcess], *, wait_s: float = _END_S) -> None:
    """End processes together: ask, wait, kill. From any thread, as often as one likes.

    Their connections stay open: another thread may be reading, and must see their end.
    """
    if wait_s:
        for rank in ranks:
            rank.ask_to_end()
    deadline = time.monotonic() + wait_s
    for rank in ranks:
        rank.end(deadline)


def _environment(share: CpuShare) -> dict[str, str]:
    # The same kit as here, whatever put it on the path of this process.
    paths = (str(Path(kit.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    own = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    if share.num_threads is not None:
        own["OMP_NUM_THREADS"] = str(share.num_threads)
    return {**os.environ, **own}
