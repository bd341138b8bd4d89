"""Waits for images on behalf of a client; what nobody waits for any more is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request

from kit.engine.engine import ImageEngine
from kit.engine.pending import RequestHandle
from kit.errors import CancelledError
from kit.request import GenerationResult


async def await_or_cancel(
    request: Request, engine: ImageEngine, handles: Sequence[RequestHandle]
) -> list[GenerationResult]:
    """Return the results in the order of `handles`; call it when the body has been read.

    Raises the first error of a request, or CancelledError when the client has left. Whatever ends
    this call, requests that are not done by then are cancelled.
    """
    results = asyncio.gather(*(asyncio.wrap_future(handle.future) for handle in handles))
    gone = asyncio.ensure_future(client_left(request))
    try:
        await asyncio.wait((results, gone), return_when=asyncio.FIRST_COMPLETED)
        if not results.done():
            raise CancelledError("the client left before its images were done")
        return results.result()
    finally:
        gone.cancel()
        results.add_done_callback(_look_at)
        results.cancel()
        cancel_all(engine, handles)


def cancel_all(engine: ImageEngine, handles: Sequence[RequestHandle]) -> None:
    """Cancel the requests that are not done: a waiting one at once, a running one at its step."""
    for handle in handles:
        if not handle.future.done():
            engine.cancel(handle.request_id)


def _look_at(results: asyncio.Future[list[GenerationResult]]) -> None:
    """Take note of how it ended: asyncio reports an error that nobody has looked at."""
    if not results.cancelled():
        results.exception()


async def client_left(request: Request) -> None:
    """Return when the client has closed its connection; its body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
