"""Clients that connect, send, leave, break off and die in random ways, many at once."""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from bench.server_process import PATIENCE_S, ServerProcess, ServerProcessError, image_body

IMAGES = "/v1/images/generations"
CHAT = "/v1/chat/completions"
NUM_CLIENTS = 6
"""How many act at once: one request runs, so most of them find a queue."""

MAX_STAY_S = 0.6
"""How long a client stays at most before it leaves: less than a queue takes, more than a step."""

_LONG_STEPS = 300

# Sends what it reads from its input, then waits to be killed.
_CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(sys.stdin.buffer.read())
sys.stdout.write("sent\\n")
sys.stdout.flush()
connection.recv(1 << 30, socket.MSG_WAITALL)
"""


def run_cycles(server: ServerProcess, num_cycles: int, seed: int) -> dict[str, int]:
    """Let `num_cycles` clients come and go; returns how often each kind of client did.

    Every kind comes up about equally often. Raises ServerProcessError when a client that waits for
    its answer gets a wrong one, and OSError when the server takes no connection.
    """
    kinds = list(_KINDS)
    draw = random.Random(seed)
    plan = [kinds[at % len(kinds)] for at in range(num_cycles)]
    draw.shuffle(plan)
    done: Counter[str] = Counter()
    lock = threading.Lock()
    expected = json.loads(server.post(IMAGES, image_body())[1])["data"][0]["b64_json"]

    def cycle(at: int) -> None:
        _KINDS[plan[at]](_Client(server, random.Random(f"{seed}/{at}"), expected))
        with lock:
            done[plan[at]] += 1

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for _ in pool.map(cycle, range(num_cycles)):
            pass
    return dict(done)


class _Client:
    """One client with its own random numbers."""

    def __init__(self, server: ServerProcess, draw: random.Random, expected: str) -> None:
        self.server, self.expected = server, expected
        self._draw = draw
        parts = urlsplit(server.url)
        assert parts.hostname is not None, "a server's URL names its host"
        assert parts.port is not None, "and its port"
        self.address = (parts.hostname, parts.port)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=PATIENCE_S)

    def stay(self) -> None:
        time.sleep(self._draw.random() * MAX_STAY_S)

    def long_request(self) -> bytes:
        """The bytes of a request that nobody will wait for."""
        fields: dict[str, Any] = {"num_inference_steps": _LONG_STEPS}
        fields["n"] = self._draw.choice((1, 1, 2))
        fields["stream"] = self._draw.random() < 0.3
        if fields["stream"]:
            fields["partial_images"] = self._draw.randrange(4)
        path, body = IMAGES, image_body(f"picture {self._draw.random()}", **fields)
        if self._draw.random() < 0.3:
            path = CHAT
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        return _http(path, body)

    def cut(self, request: bytes) -> bytes:
        """Some beginning of a request that is not the whole of it."""
        return request[: self._draw.randrange(1, len(request))]


def _http(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: kit\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _connect_only(client: _Client) -> None:
    with client.connect():
        pass


def _leave_in_the_middle(client: _Client) -> None:
    with client.connect() as connection:
        connection.sendall(client.cut(client.long_request()))
        client.stay()


def _leave_at_once(client: _Client) -> None:
    with client.connect() as connection:
        connection.sendall(client.long_request())


def _leave_later(client: _Client) -> None:
    with client.connect() as connection:
        connection.sendall(client.long_request())
        client.stay()


def _reset(client: _Client) -> None:
    with client.connect() as connection:
        connection.sendall(client.long_request())
        client.stay()
        # A linger time of zero makes close() send a reset.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _be_killed(client: _Client) -> None:
    host, port = client.address
    command = [sys.executable, "-I", "-S", "-c", _CLIENT, host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None, "asked for"
        assert process.stdout is not None, "asked for"
        process.stdin.write(client.long_request())
        process.stdin.close()
        process.stdout.readline()
        client.stay()
        process.kill()


def _run_out_of_time(client: _Client) -> None:
    body = image_body(num_inference_steps=_LONG_STEPS, timeout_s=0.3)
    status, text = client.server.post(IMAGES, body)
    if status != 504:
        raise ServerProcessError(f"a request of 0.3 s was answered with {status}: {text:.300}")


def _wait_for_the_picture(client: _Client) -> None:
    status, text = client.server.post(IMAGES, image_body())
    if status != 200:
        raise ServerProcessError(f"a good request was answered with {status}: {text:.300}")
    # The file holds the replay record, so equal text means equal pixels from equal settings.
    if json.loads(text)["data"][0]["b64_json"] != client.expected:
        raise ServerProcessError("a picture differs from that of its solo run")


_KINDS: dict[str, Callable[[_Client], None]] = {
    "connects and leaves": _connect_only,
    "leaves in the middle of its request": _leave_in_the_middle,
    "leaves at once": _leave_at_once,
    "leaves later": _leave_later,
    "resets the connection": _reset,
    "is killed": _be_killed,
    "runs out of time": _run_out_of_time,
    "waits for its picture": _wait_for_the_picture,
}
