"""Bounds what a request's body may cost before anything parses it: bytes, and depth of JSON."""

from __future__ import annotations

import asyncio
import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kit.server.errors import error_response

MAX_JSON_DEPTH = 64
"""Legal bodies have less than 10 levels; parsers and error messages recurse once a level."""

_LINGER_S = 2.0
"""How long the rest of a refused body is read and dropped, so that its sender sees the answer."""

_THREAD_BYTES = 1 << 16
"""Longer bodies are scanned off the event loop."""

# A string, also one that never ends: each byte is looked at once, whatever the body holds.
_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class LimitedBody:
    """ASGI middleware: 413 for a body too long, 400 for JSON too deep, 415 for compressed ones.

    A length that is declared is refused before a byte is read. Multipart bodies pass in pieces and
    are counted; all others are read here, as every route needs them whole.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_json_bytes: int) -> None:
        self._app = app
        self._max_bytes, self._max_json_bytes = max_bytes, min(max_json_bytes, max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_multipart = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self._max_bytes if is_multipart else self._max_json_bytes
        declared = headers.get("content-length", "")
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            response = error_response(
                415,
                f"Content-Encoding: got {encoding!r:.40}; send the body uncompressed",
                kind="invalid_request_error",
                headers={"accept-encoding": "identity"},
            )
            await response(scope, receive, send)
            return
        if declared.isdecimal() and int(declared) > limit:
            await _refuse(scope, receive, send, limit, has_unread=True)
        elif is_multipart:
            await self._app(scope, _counting(receive, limit), send)
        else:
            await self._run_whole(scope, receive, send, limit)

    async def _run_whole(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        pieces, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
            if size > limit:
                await _refuse(scope, receive, send, limit, has_unread=more)
                return
        body = b"".join(pieces)
        if await _is_too_deep(body):
            response = error_response(
                400,
                f"the body nests deeper than {MAX_JSON_DEPTH} levels; no field needs that",
                kind="invalid_request_error",
            )
            await response(scope, receive, send)
            return
        await self._app(scope, _replaying(body, receive), send)


def json_depth(body: bytes) -> int:
    """Return how deep the brackets of a JSON text nest, at most MAX_JSON_DEPTH + 1; never fails."""
    depth = deepest = 0
    for byte in _JSON_STRING.sub(b"", body).translate(None, _NO_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > deepest:
                deepest = depth
                if deepest > MAX_JSON_DEPTH:
                    break
        else:
            depth -= 1
    return deepest


async def _is_too_deep(body: bytes) -> bool:
    if len(body) > _THREAD_BYTES:
        return await asyncio.to_thread(json_depth, body) > MAX_JSON_DEPTH
    return json_depth(body) > MAX_JSON_DEPTH


def _too_long(limit: int) -> str:
    return f"the body is longer than {limit} bytes, the limit of this server for its kind"


def _counting(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, _too_long(limit))
        return message

    return counted


def _replaying(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _refuse(
    scope: Scope, receive: Receive, send: Send, limit: int, *, has_unread: bool
) -> None:
    response = error_response(413, _too_long(limit), kind="invalid_request_error")
    response.headers["connection"] = "close"

    async def send_and_linger(message: Message) -> None:
        if message["type"] == "http.response.body" and has_unread:
            await send({**message, "more_body": True})
            # Closing a connection with unread data resets it, and the answer may be lost.
            try:
                async with asyncio.timeout(_LINGER_S):
                    while (await receive()).get("more_body", False):
                        pass
            except TimeoutError:
                pass
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    await response(scope, receive, send_and_linger)
