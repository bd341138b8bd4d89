"""A foreign images server, as small as it gets: what it answers is up to the test."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

Reply = Callable[[dict[str, Any]], tuple[int, bytes]]
"""From the body of a request to the status and the body of its answer."""


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def answer(*pictures: bytes, **fields: Any) -> tuple[int, bytes]:
    """A good answer with these files."""
    data = [{"b64_json": base64.b64encode(picture).decode()} for picture in pictures]
    return 200, json.dumps({"created": 1, "data": data, **fields}).encode()


def paint(body: dict[str, Any]) -> tuple[int, bytes]:
    """As good servers do: as many pictures as asked for, of that size, by the seed."""
    width, height = map(int, body["size"].split("x"))
    return answer(*(png(width, height, body["seed"] + at) for at in range(body["n"])))


@contextmanager
def images_server(reply: Reply = paint) -> Iterator[str]:
    """Serve on a free port; yields the URL. Other paths are unknown to it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.path == "/v1/images/generations"
            self._send(*(reply(body) if known else (404, b"{}")))

        def do_GET(self) -> None:
            models = b'{"data": [{"id": "painter"}]}'
            self._send(*((200, models) if self.path == "/v1/models" else (404, b"{}")))

        def _send(self, status: int, content: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except ConnectionError:  # the client has left
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
