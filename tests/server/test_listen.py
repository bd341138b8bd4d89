"""The listening socket: taken at once, refused with the reason."""

from __future__ import annotations

import socket

import pytest

from kit.errors import ConfigError
from kit.server.listen import open_listener


def test_a_free_port_is_taken_and_accepts() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port), timeout=5):
            pass


def test_what_is_sent_on_an_accepted_connection_waits_for_nothing() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_port_in_use_is_refused() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"--port: is in use already \(got {port}"
        ) as refused:
            open_listener("127.0.0.1", port)
    assert refused.value.exit_code == 2
    open_listener("127.0.0.1", port).close()


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_a_number_that_is_no_port(port: int) -> None:
    with pytest.raises(ConfigError, match="--port"):
        open_listener("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "x" * 300])
def test_an_address_of_no_or_another_machine(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--host|--port"):
        open_listener(host, 0)
