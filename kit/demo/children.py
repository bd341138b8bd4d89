"""Servers that the page starts for itself, and ends with itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kit.telemetry.environment import num_usable_cpus
from kit.telemetry.log import get_logger

SERVER_BYTES = 1 << 30
"""Free memory that a server on the shipped checkpoint wants: 0.6 GiB at rest, more as it draws."""

_POOL_BYTES = 32 << 20
_PAGE_SIZE = 8
"""A pool small enough to see: 292 pages of 8 tokens, four pictures with guidance."""

_STOP_LIMIT_S = 10.0

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends the page and, with it, its servers."""

PAGED = (
    "--deploy-config",
    "hunyuan_image3_paged.yaml",
    "--kv-cache-memory-bytes",
    str(_POOL_BYTES),
    "--stage-overrides",
    json.dumps({"0": {"diffusion_kv_page_size": _PAGE_SIZE}}),
)
DENSE: tuple[str, ...] = ()
"""dense_legacy is what runs when nothing is said."""

logger = get_logger("demo")


@dataclass(frozen=True)
class Child:
    """One `kit serve` process."""

    name: str
    port: int
    process: subprocess.Popen[str]
    stopping: threading.Event
    """Set when this process ends it."""

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start(name: str, port: int, flags: tuple[str, ...], say: Callable[[str], None]) -> Child:
    """Start a server on this machine only; `say` gets its log lines, from a thread."""
    # A session of its own: Ctrl-C reaches this process, which then stops the server once.
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kit.cli",
            "serve",
            "--port",
            str(port),
            "--shutdown-grace-s",
            "1",
            *flags,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={"OMP_NUM_THREADS": str(_num_threads())} | os.environ,
    )

    stopping = threading.Event()

    def forward() -> None:
        assert process.stdout is not None, "the output is a pipe"
        with process.stdout as lines:
            for line in lines:
                say(f"{name} | {line.rstrip()}")
        code = process.wait()
        if not stopping.is_set():
            say(
                f"{name} | ended with code {code}; the demo does not start it again: "
                "stop the demo with Ctrl-C and start it anew"
            )

    threading.Thread(target=forward, name=f"kit-{name}", daemon=True).start()
    return Child(name, port, process, stopping)


@contextmanager
def held_signals() -> Iterator[None]:
    """Let what would end this process wait until the block's end, then raise KeyboardInterrupt.

    A server whose start is interrupted half-way stands in no list, so nobody would stop it.
    """
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _num_threads() -> int:
    """All cores but one: threads wait for each other, and the page and a browser run here, too."""
    return max(1, num_usable_cpus() - 1)


def stop(children: list[Child]) -> None:
    """End the servers; one that does not end in time is killed, with a log line."""
    for child in children:
        child.stopping.set()
        child.process.terminate()
    for child in children:
        try:
            child.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s did not stop in %g s: killed", child.name, _STOP_LIMIT_S)
            child.process.kill()
            child.process.wait()
