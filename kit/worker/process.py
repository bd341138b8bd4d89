"""One rank as a process: `python -m kit.worker.process FD`, started by kit/executor.

FD is its end of a connection to the process that started it. When the other end closes, whatever
closed it, this process ends at once, in the middle of a step if need be.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, cast

from kit.errors import KitError
from kit.messages import (
    FromRank,
    Loaded,
    RunRequest,
    Shutdown,
    StartRank,
    StopRun,
    Tick,
    ToRank,
)
from kit.request import StepEvent
from kit.telemetry.log import configure_logging, get_logger
from kit.worker.failure import to_failure

logger = get_logger("worker")


class Inbox:
    """Reads messages on a thread of its own, so that a wish to stop is seen during a run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[StartRank | RunRequest | Tick | Shutdown] = (
            queue.SimpleQueue()
        )
        self._stopped: set[str] = set()
        self._ends = threading.Event()
        self._meeting: str | None = None
        threading.Thread(target=self._read, name="kit-inbox", daemon=True).start()

    def next(self) -> StartRank | RunRequest | Tick | Shutdown:
        """Wait for the next message that is no wish to stop."""
        return self._waiting.get()

    def is_stopped(self, request_id: str) -> bool:
        return request_id in self._stopped or self._ends.is_set()

    def leave(self) -> NoReturn:
        """End this process: the other end is gone, and so is whoever would clear up after us."""
        if self._meeting is not None and self._meeting.startswith("file://"):
            meeting = Path(self._meeting.removeprefix("file://"))
            with contextlib.suppress(OSError):  # another rank was here first
                meeting.unlink(missing_ok=True)
                meeting.parent.rmdir()
        leave()

    def _read(self) -> None:
        while True:
            try:
                message = cast(ToRank, self._connection.recv())
            except (EOFError, OSError):
                self.leave()
            if isinstance(message, StartRank):
                self._meeting = message.config.rendezvous
            if isinstance(message, StopRun):
                self._stopped.add(message.request_id)
                continue
            if isinstance(message, RunRequest):
                # A wish that came too late was for an earlier request of the same id.
                self._stopped.discard(message.request_id)
            if isinstance(message, Shutdown):
                self._ends.set()
            self._waiting.put(message)


def serve(connection: Connection) -> None:
    """Load what the first message says, run requests until Shutdown."""
    inbox = Inbox(connection)
    start = inbox.next()
    assert isinstance(start, StartRank), "the first message starts the rank"
    configure_logging(start.log_level, rank=start.name)
    if start.cpus:
        os.sched_setaffinity(0, start.cpus)

    def send(message: FromRank) -> None:
        try:
            connection.send(message)
        except OSError:
            inbox.leave()

    try:
        # Not above: the inbox must listen while torch is imported, which takes seconds.
        from kit.worker.runner import ModelRunner

        runner = ModelRunner(start.config)
    except BaseException as error:  # carried to the process that asked, whatever it is
        if not isinstance(error, KitError):
            logger.exception("loading failed")
        send(to_failure(error))
        return
    info = runner.info
    logger.info(
        "%s: %s, %s, kernel %s, page size %s, pool %d bytes, %d threads",
        start.config.topology,
        info.device,
        info.backend,
        info.kernel,
        info.page_size,
        info.pool_bytes,
        info.platform.num_threads,
    )
    send(Loaded(info))
    on_step = send if start.config.rank == 0 else _keep
    while isinstance(run := inbox.next(), RunRequest | Tick):
        try:
            if isinstance(run, Tick):
                send(runner.advance(run))
            else:
                send(runner.run(run, on_step, partial(inbox.is_stopped, run.request_id)))
        except BaseException as error:  # as above
            if not isinstance(error, KitError):
                logger.exception("request %s failed", run.request_id)
            send(to_failure(error))
    runner.close()


def _keep(event: StepEvent) -> None:
    """The steps of a group are told by its first rank."""


def leave() -> NoReturn:
    """End this process now: nobody listens, and a thread may be inside a kernel."""
    logging.shutdown()
    os._exit(0)


def main() -> None:
    """Serve the connection whose file descriptor is the only argument."""
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
