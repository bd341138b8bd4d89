"""The server's socket, taken before anything is loaded; imports nothing heavy."""

from __future__ import annotations

import errno
import socket

from kit.errors import ConfigError, flag_error

_BACKLOG = 2048


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ConfigError.

    Connections wait in the kernel until the server accepts them.
    """
    if not 0 <= port <= 65535:
        raise flag_error("--port", "is no port", port, "give 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise flag_error(
            "--host",
            f"cannot be resolved: {error}",
            host,
            "give an address of this machine, such as 127.0.0.1 or 0.0.0.0",
        ) from error
    family, _, _, _, address = found[0]
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason, remedy = "is in use already", "stop what listens there or choose another port"
        else:
            reason = f"cannot be listened on at {host}: {error.strerror}"
            remedy = "choose an address of this machine and a port that you may use"
        # It may be the default: nobody need have set it.
        raise ConfigError("--port", reason, value=port, remedy=remedy) from error
    # Accepted connections inherit it. asyncio sets it only on sockets whose `proto` says TCP, which
    # those of create_server do not: each answer would wait 40 ms for the client's delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def shown_url(listener: socket.socket) -> str:
    """Return a URL that a browser on this machine can open."""
    host, port = listener.getsockname()[:2]
    if host in ("127.0.0.1", "0.0.0.0", "::", "::1"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
