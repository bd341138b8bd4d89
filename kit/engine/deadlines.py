"""Watches the time limits of requests, on a thread of its own."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable


class Deadlines:
    """Calls back when the time of a request is up, whatever else runs; any thread may call it."""

    def __init__(self, expire: Callable[[str], None]) -> None:
        """`expire` is told the id, at most once for each `add` and on this object's thread.

        The request may have ended long before: `expire` must look.
        """
        self._expire = expire
        self._changed = threading.Condition()  # guards the three below
        self._due: list[tuple[float, str]] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, request_id: str, due: float) -> None:
        """Watch a request until `due`, a reading of time.perf_counter."""
        with self._changed:
            heapq.heappush(self._due, (due, request_id))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="kit-deadlines", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Call back no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        while (request_id := self._next()) is not None:
            self._expire(request_id)

    def _next(self) -> str | None:
        """Wait for the next request whose time is up; None when closed."""
        with self._changed:
            while not self._closed:
                now = time.perf_counter()
                if self._due and self._due[0][0] <= now:
                    return heapq.heappop(self._due)[1]
                self._changed.wait(self._due[0][0] - now if self._due else None)
            return None
