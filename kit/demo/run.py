"""Serves the page until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn

from kit.demo.children import SIGNALS
from kit.demo.desk import Desk, Servers
from kit.demo.page import build_app

_ANSWER_LIMIT_S = 1


def serve_page(servers: Servers, listener: socket.socket, *, on_open: Callable[[], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; `on_open` is called when the page answers."""
    asyncio.run(_serve(servers, listener, on_open))


async def _serve(servers: Servers, listener: socket.socket, on_open: Callable[[], None]) -> None:
    config = uvicorn.Config(
        build_app(Desk(servers)),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=_ANSWER_LIMIT_S,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_worth_a_line)
    server = _Server(config)
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        on_open()
    await serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would end this process by them, its children left behind."""
        yield

    def stop(self) -> None:
        self.should_exit = True


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """At the end the event stream of every open page is cut off: that is no error."""
    return "timeout graceful shutdown exceeded" not in str(record.msg)
