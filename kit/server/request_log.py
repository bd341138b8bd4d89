"""Gives every request an id and a log line, and answers what nobody else answered."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kit.server.errors import error_response, internal_error
from kit.server.security import PROBES
from kit.telemetry.log import get_logger

HEADER = "x-request-id"

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLIENT_LEFT = 499
_MAX_PATH_CHARS = 200

logger = get_logger("server")


class RequestLog:
    """ASGI middleware, the outermost: x-request-id on every answer, one line when it is sent.

    A client's own id is kept if it is a plain word: it goes into headers and log lines.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _SANE_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        started, status = time.perf_counter(), 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        where = f"{scope['method']} {scope['path'][:_MAX_PATH_CHARS]!r}"
        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            content = internal_error(error, f"{where}, request {request_id}")["error"]
            if status:
                raise  # half an answer is out: the connection must break
            response = error_response(500, content["message"], kind=content["type"])
            await response(scope, receive, tagged)
        finally:
            level = logging.DEBUG if scope["path"] in (*PROBES, "/metrics") else logging.INFO
            elapsed = time.perf_counter() - started
            logger.log(
                level,
                "%s: %d in %.3f s, request %s",
                where,
                status or _CLIENT_LEFT,
                elapsed,
                request_id,
            )
