"""Listens while the weights load, serves, and shuts down in order on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from kit.config.deploy import DeployConfig
from kit.engine.engine import ImageEngine
from kit.server.app import create_app
from kit.server.listen import shown_url
from kit.server.settings import ServerSettings
from kit.telemetry.log import get_logger

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_ANSWER_LIMIT_S = 5
"""How long finished results may take to reach their clients at shutdown."""

logger = get_logger("server")


def serve(
    model: Path,
    config: DeployConfig,
    settings: ServerSettings,
    listener: socket.socket,
    *,
    shutdown_grace_s: float,
) -> int:
    """Serve until a signal comes; returns the exit code. Errors as in ImageEngine.

    Call it from the main thread. The first SIGINT or SIGTERM refuses new requests, ends those that
    wait and lets the running one go on for `shutdown_grace_s` seconds; the second exits at once.
    """
    engine = ImageEngine(model, config)
    server = _Server(
        uvicorn.Config(
            create_app(engine, settings),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_ANSWER_LIMIT_S,
        )
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if not asyncio.run(_serve(engine, server, listener, settings.name, shutdown_grace_s)):
        # Python cannot end while a thread is inside a kernel or a read that never returns.
        logger.warning("left behind: loading, or a step that did not end in time")
        logging.shutdown()
        os._exit(0)
    logger.info("stopped")
    return 0


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would stop listening at once, and end by the signal."""
        yield


async def _serve(
    engine: ImageEngine, server: _Server, listener: socket.socket, name: str, grace_s: float
) -> bool:
    """Serve until a signal comes or loading fails; False when the engine did not stop."""
    stop = asyncio.Event()
    _watch_signals(stop, grace_s)
    # Who reads this may send a signal.
    logger.info("serving %s on %s (API: /docs, health: /health)", name, shown_url(listener))
    loading = _start_in_thread(engine)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((loading, serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if loading.done() and loading.exception() is None:
        logger.info("ready")
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    has_stopped = await asyncio.to_thread(engine.close, grace_s)
    server.should_exit = True
    await serving
    stopping.cancel()
    if loading.done():
        loading.result()
    return has_stopped and loading.done()


def _watch_signals(stop: asyncio.Event, grace_s: float) -> None:
    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stop.is_set():
            logger.warning("%s again: exit at once", name)
            logging.shutdown()
            os._exit(128 + number)
        logger.info(
            "%s: no more requests; the running one has %g s, again exits at once", name, grace_s
        )
        stop.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)


def _start_in_thread(engine: ImageEngine) -> asyncio.Future[None]:
    """Load on a thread that does not keep the process; the future holds what loading raised."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[None] = loop.create_future()

    def start() -> None:
        error: BaseException | None = None
        try:
            engine.start()
        except BaseException as caught:  # carried to the event loop, whatever it is
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            if error is None:
                loop.call_soon_threadsafe(loaded.set_result, None)
            else:
                loop.call_soon_threadsafe(loaded.set_exception, error)

    threading.Thread(target=start, name="kit-start", daemon=True).start()
    return loaded
