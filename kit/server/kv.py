"""The page pool as JSON, once or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from kit.engine.engine import ImageEngine
from kit.errors import InvalidRequestError, OverloadedError
from kit.server.fields import StrictModel
from kit.server.settings import ServerSettings
from kit.server.sse import EventStream

EVENT_INTERVAL_S = 0.1
"""At most one event in this time; what changes more often is seen in its last state."""

_KEEP_ALIVE_S = 15.0
_RETRY_AFTER_S = 5.0


class _Query(StrictModel):
    stream: Literal["true", "false"] = Field("false", description="Send an event after each change")


def install_kv(app: FastAPI, engine: ImageEngine, settings: ServerSettings) -> None:
    """Add GET /v1/kv."""
    streams = _Streams(engine, settings.max_event_streams)

    @app.get(
        "/v1/kv",
        tags=["operation"],
        response_model=dict[str, Any],
        responses={
            200: {
                "description": "Who holds which pages, and what lies in them",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        },
    )
    async def kv(
        request: Request,
        query: Annotated[_Query, Query()],
        accept: Annotated[str, Header(include_in_schema=False)] = "",
    ) -> Response:
        """The page pool: counts, and the page tables of all requests that hold pages."""
        if len(request.query_params.getlist("stream")) > 1:
            raise InvalidRequestError("stream: is given twice", param="stream")
        if query.stream == "true" or "text/event-stream" in accept.lower():
            return streams.open()
        return JSONResponse(asdict(engine.kv_view()))


class _Streams:
    """The open event streams of one server; used on its event loop only."""

    def __init__(self, engine: ImageEngine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._num_open = 0

    def open(self) -> Response:
        """Return a stream of events; raises OverloadedError when too many are open."""
        if self._num_open >= self._limit:
            raise OverloadedError(
                f"{self._limit} event streams of /v1/kv are open, the limit of this server",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_open += 1
        return EventStream(self._events(), on_end=self._closed)

    def _closed(self) -> None:
        self._num_open -= 1

    async def _events(self) -> AsyncIterator[str]:
        """Yield the view now and after each change, until the engine shuts down."""
        seen, sent = -1, time.monotonic()
        while not (seen >= 0 and self._engine.status().closing):
            if self._engine.version != seen:
                view = self._engine.kv_view()
                seen, sent = view.version, time.monotonic()
                yield f"event: kv\nid: {seen}\ndata: {json.dumps(asdict(view))}\n\n"
            elif time.monotonic() - sent > _KEEP_ALIVE_S:
                sent = time.monotonic()
                yield ": nothing changed\n\n"
            await asyncio.sleep(EVENT_INTERVAL_S)
