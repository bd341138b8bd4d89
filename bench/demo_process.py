"""A real `kit demo` process: its page's URL, what it says, its end."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from queue import Empty, Queue
from types import TracebackType
from typing import Self

from bench.server_process import PATIENCE_S, ServerProcessError


class DemoProcess:
    """Starts the page on a free port; leaving its context kills what is left of it."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kit.cli", "demo", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        """What it and the servers that it started have said so far."""

        self._urls: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.url = self._urls.get(timeout=PATIENCE_S)
        except Empty:
            self.url = ""
        if not self.url:
            self._end()
            raise ServerProcessError("kit demo shows no page:\n" + "\n".join(self.lines))

    def server_url(self) -> str:
        """Return the URL of the paged server that it has started."""
        found = re.search(r"^paged \| .*serving .* on (http://\S+)", self.log, re.MULTILINE)
        if found is None:
            raise ServerProcessError(f"kit demo names no paged server:\n{self.log}")
        return found[1]

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None, "it was asked for"
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                if found := re.match(r"the page: (\S+)", line):
                    self._urls.put(found[1])
        self._urls.put("")

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # a kill would leave the servers behind
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
