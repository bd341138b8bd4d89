"""The connection to one rank that runs in a process of its own, wherever that is."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import kit
from kit.messages import FromRank, Shutdown, ToRank

END_S = 5.0
"""What a rank that was asked to end gets for it, before it is killed."""


class RankGoneError(Exception):
    """The process has ended, or closed its end of the connection."""


class RankLink(ABC):
    """Owns our end of the connection; a subclass owns the process at the other one.

    The process ends when the connection does: whatever ends this process ends it, too.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self.name, self.connection = name, connection

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id, on its machine."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether the process has ended; looks, and does not wait."""

    @abstractmethod
    def describe_end(self) -> str:
        """Say how the process ended, or that it has not."""

    @abstractmethod
    def end(self, deadline: float) -> None:
        """Wait for its end until `deadline`, a reading of time.monotonic, then kill it.

        From any thread; the connection stays open, because another one may be reading.
        """

    def limit_waits(self, seconds: float) -> None:
        """Let no message take longer than that between two of its bytes.

        A stopped process reads nothing, and a message with pictures is more than a socket holds.
        """
        whole, rest = divmod(seconds, 1)
        limit = struct.pack("ll", int(whole), int(rest * 1e6))  # a struct timeval
        with socket.socket(fileno=os.dup(self.connection.fileno())) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def send(self, message: ToRank) -> None:
        """Raises RankGoneError."""
        try:
            self.connection.send(message)
        except BlockingIOError as error:
            raise RankGoneError(f"{self.name} (process {self.pid}) takes no message") from error
        except OSError as error:
            raise RankGoneError(self.describe_end()) from error

    def receive(self) -> FromRank:
        """Wait for a message; raises RankGoneError."""
        try:
            return cast(FromRank, self.connection.recv())
        except BlockingIOError as error:
            stuck = f"{self.name} (process {self.pid}) stopped in the middle of a message"
            raise RankGoneError(stuck) from error
        except (EOFError, OSError) as error:
            raise RankGoneError(self.describe_end()) from error

    def check(self) -> None:
        """Raise RankGoneError if the process has ended; only while it has nothing to say."""
        if self.connection.poll():
            self.receive()

    def ask_to_end(self) -> None:
        """Have it end after the step it makes; a rank that takes no message is not asked."""
        with contextlib.suppress(OSError):  # it is gone
            ready = select.poll()
            ready.register(self.connection.fileno(), select.POLLOUT)
            if ready.poll(0):
                self.connection.send(Shutdown())


def import_path() -> str:
    """Return the PYTHONPATH by which a rank imports the same kit as this process."""
    paths = (str(Path(kit.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return os.pathsep.join(path for path in paths if path)


def end_all(ranks: Sequence[RankLink], *, wait_s: float = END_S) -> None:
    """End processes together: ask, wait, kill. From any thread, as often as one likes."""
    if wait_s:
        for rank in ranks:
            rank.ask_to_end()
    deadline = time.monotonic() + wait_s
    for rank in ranks:
        rank.end(deadline)
