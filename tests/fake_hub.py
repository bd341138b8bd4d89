"""A hub on 127.0.0.1: the part of the real one's HTTP interface that a download uses."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

MODEL = "lab/tiny-image"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Seen(NamedTuple):
    """One request that arrived."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class Answer(NamedTuple):
    """What is sent in place of a file."""

    status: int = 200
    content: bytes | None = None
    """None: the bytes of the file."""

    stop_after: int | None = None
    """Bytes after which the connection breaks."""

    hold: threading.Event | None = None
    """Where it stopped, it waits for this before the connection breaks."""

    is_reset: bool = False
    """Whether it breaks with an error of the network, as when a router drops it."""


@dataclass
class FakeHub:
    """One model; tests set what goes wrong."""

    files: dict[str, bytes]
    url: str = ""
    storage_url: str = ""
    """Another origin, where the bytes of large files lie."""

    revisions: dict[str, str | None] = field(
        default_factory=lambda: {"main": COMMIT, COMMIT: COMMIT}
    )
    entries: list[dict[str, Any]] = field(default_factory=list)
    """What the list of files says beside the truth."""

    token: str | None = None
    """Bearer token that every request to the hub, but not to the storage, must carry."""

    is_gated: bool = False
    script: dict[str, list[Answer]] = field(default_factory=dict)
    """File to its next answers; after these come its bytes."""

    seen: list[Seen] = field(default_factory=list)

    @classmethod
    def of_folder(cls, folder: Path) -> FakeHub:
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        files["README.md"] = b"# a tiny model\n"
        files["modeling.py"] = b"raise SystemExit('code of the repository was run')\n"
        return cls(files)

    def ranges(self, name: str) -> list[str | None]:
        """The Range header of each request for the bytes of a file, in order."""
        return [seen.range for seen in self.seen if seen.path == f"/bytes/{name}"]

    def listing(self, commit: str | None) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content)}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if is_large(name):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {"id": MODEL, "sha": commit, "siblings": [*siblings, *self.entries]}

    @contextmanager
    def serve(self) -> Iterator[FakeHub]:
        """Answer on two ports of 127.0.0.1 until the block ends."""
        handler = type("Handler", (_Handler,), {"hub": self})
        servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        threads = [
            threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers
        ]
        self.url, self.storage_url = (f"http://127.0.0.1:{s.server_port}" for s in servers)
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server, thread in zip(servers, threads, strict=True):
                server.shutdown()
                thread.join()
                server.server_close()


def is_large(name: str) -> bool:
    """Whether the hub keeps a file outside of git."""
    return name.endswith((".safetensors", "tokenizer.json"))


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.seen.append(
            Seen("GET", path, self.headers["Range"], self.headers["Authorization"])
        )
        if path.startswith("/bytes/"):
            self._bytes(path.removeprefix("/bytes/"))
        elif self.hub.token and self.headers["Authorization"] != f"Bearer {self.hub.token}":
            self._error(401, "RepoNotFound")
        elif found := re.fullmatch(rf"/api/models/{MODEL}/revision/(.+)", path):
            if found[1] in self.hub.revisions:
                listing = self.hub.listing(self.hub.revisions[found[1]])
                self._answer(200, json.dumps(listing).encode())
            else:
                self._error(404, "RevisionNotFound")
        elif found := re.fullmatch(rf"/{MODEL}/resolve/[0-9a-f]{{40}}/(.+)", path):
            self._resolve(found[1])
        else:
            self._error(404, "RepoNotFound")

    def _resolve(self, name: str) -> None:
        if self.hub.is_gated:
            self._error(403, "GatedRepo")
        elif is_large(name):
            self._answer(302, b"", {"Location": f"{self.hub.storage_url}/bytes/{name}"})
        else:
            self._bytes(name)

    def _bytes(self, name: str) -> None:
        script = self.hub.script.get(name)
        answer = script.pop(0) if script else Answer()
        if answer.status != 200:
            self._error(answer.status, "Unavailable")
            return
        content = self.hub.files[name] if answer.content is None else answer.content
        start, headers = 0, {}
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or ""):
            start = int(found[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        status = 206 if start else 200
        self._answer(status, content[start:], headers, stop_after=answer.stop_after)
        if answer.hold is not None:
            answer.hold.wait(60)
        if answer.is_reset:
            reset = struct.pack("ii", 1, 0)  # linger for no time: close with RST in place of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self.connection.close()

    def _error(self, status: int, code: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        stop_after: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:stop_after])
        if stop_after is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""
