"""`kit demo`: the page, around servers that run or that it starts."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kit.commands.numbers import integer
from kit.commands.output import Say
from kit.commands.serve import API_KEY_VARIABLE
from kit.demo.children import DENSE, PAGED, SERVER_BYTES, Child, held_signals, start, stop
from kit.errors import ConfigError, flag_error
from kit.hub.endpoint import is_server_url
from kit.platforms.cpu import CpuPlatform
from kit.server.listen import open_listener, shown_url
from kit.telemetry.log import configure_logging

if TYPE_CHECKING:
    from kit.demo.desk import Servers

DEFAULT_PORT, DEFAULT_SERVER_PORT = 7860, 8091


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the page."""
    parser.add_argument("--host", default="127.0.0.1", help="address of the page (127.0.0.1)")
    parser.add_argument(
        "--port",
        type=integer,
        help="of the page, 0 takes a free one (7860; make demo: DEMO_PORT=)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"a running server; a key is read from {API_KEY_VARIABLE} (without: two are started)",
    )
    parser.add_argument(
        "--compare-server", metavar="URL", help="a second one, for Compare; needs --server"
    )
    parser.add_argument(
        "--public-server",
        metavar="URL",
        help="where your browser and programs reach --server (the same URL)",
    )
    parser.add_argument(
        "--public-compare-server", metavar="URL", help="where they reach --compare-server"
    )
    parser.add_argument(
        "--server-port",
        type=integer,
        metavar="PORT",
        help="of the server to start, the second one takes the next; 0 takes free ones "
        "(8091; make demo: DEMO_SERVER_PORT=)",
    )


def demo(args: argparse.Namespace, *, say: Say, note: Say) -> int:
    """Serve the page until a signal comes; `say` gets its URL, `note` what servers log."""
    _check(args)
    with _page_listener(args.host, args.port) as listener:
        # With the page's own port taken, so that no server is given it.
        ports = _free_ports(args.server_port) if args.server is None else None
        configure_logging()
        # Until the page runs and has handlers of its own: what ends this must end the servers, too.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        children: list[Child] = []
        try:
            servers = _servers(args, ports, children, note)
            # Not above: Gradio takes seconds to import, in which the servers load.
            from kit.demo.run import serve_page

            url = shown_url(listener)
            serve_page(servers, listener, on_open=lambda: say(f"the page: {url} (Ctrl-C stops it)"))
        finally:
            stop(children)
    return 0


def compare_notice(free_bytes: int) -> str:
    """Say why no second server is started; empty when memory allows one."""
    if free_bytes >= 2 * SERVER_BYTES:
        return ""
    return (
        f"Compare is hidden: two servers want {2 * SERVER_BYTES / 2**30:.1f} GiB of memory, "
        f"{free_bytes / 2**30:.1f} GiB are free."
    )


def _check(args: argparse.Namespace) -> None:
    if find_spec("gradio") is None:
        raise ConfigError(
            "kit demo", "needs Gradio, which is not installed", remedy="install the extra `demo`"
        )
    if args.server is None and args.compare_server is not None:
        raise flag_error(
            "--compare-server", "stands alone", args.compare_server, "give --server, too"
        )
    if args.server is not None and args.server_port is not None:
        raise flag_error(
            "--server-port", "is for a server to start", args.server_port, "leave out --server"
        )
    for name in ("server", "compare_server"):
        if getattr(args, name) is None and (url := getattr(args, f"public_{name}")) is not None:
            flag = name.replace("_", "-")
            raise flag_error(f"--public-{flag}", "stands alone", url, f"give --{flag}, too")
    for name in ("server", "compare_server", "public_server", "public_compare_server"):
        flag, url = f"--{name.replace('_', '-')}", getattr(args, name)
        if url is not None and not is_server_url(url):
            raise flag_error(
                flag, "is no URL of a server", url, "write it as http://localhost:8091"
            )


def _servers(
    args: argparse.Namespace, ports: tuple[int, int] | None, children: list[Child], note: Say
) -> Servers:
    """Return the servers of the command line, or start some at `ports`; `children` gets those."""
    from kit.demo.desk import Servers

    key = os.environ.get(API_KEY_VARIABLE) or None
    if ports is None:
        return Servers(
            args.server,
            args.compare_server,
            key,
            public_url=args.public_server,
            public_compare_url=args.public_compare_server,
        )
    notice = compare_notice(CpuPlatform().memory().free_bytes)
    with held_signals():
        children.append(start("paged", ports[0], PAGED, note))
    if notice:
        note(f"note: {notice}")
        return Servers(children[0].url, None, key, notice, children=tuple(children))
    with held_signals():
        children.append(start("dense", ports[1], DENSE, note))
    return Servers(children[0].url, children[1].url, key, children=tuple(children))


def _page_listener(host: str, given: int | None) -> socket.socket:
    """Return the page's socket; raises ConfigError."""
    try:
        return open_listener(host, DEFAULT_PORT if given is None else given)
    except ConfigError as error:
        if error.field != "--port":
            raise
        remedy = f"{error.remedy}: --port, for make demo DEMO_PORT="
        raise _port_error("--port", error.reason, error.value, remedy, given) from error


def _free_ports(given: int | None) -> tuple[int, int]:
    """Return the two ports, both free; raises ConfigError by the flag's name."""
    first = DEFAULT_SERVER_PORT if given is None else given
    sockets: list[socket.socket] = []
    try:
        sockets.append(open_listener("127.0.0.1", first))
        sockets.append(open_listener("127.0.0.1", first + 1 if first else 0))
        one, two = (int(taken.getsockname()[1]) for taken in sockets)
    except ConfigError as error:
        second = "the port after it, for the second server, " if sockets else ""
        remedy = (
            "choose another with --server-port, for make demo DEMO_SERVER_PORT=, "
            "or show the server that runs there with --server"
        )
        raise _port_error(
            "--server-port", second + error.reason, error.value, remedy, given
        ) from error
    finally:
        for taken in sockets:
            taken.close()
    return one, two


def _port_error(
    flag: str, reason: str, port: object, remedy: str, given: int | None
) -> ConfigError:
    if given is None:
        return ConfigError(flag, reason, value=port, source="default", remedy=remedy)
    return flag_error(flag, reason, port, remedy)
