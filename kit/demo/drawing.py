"""One request on its way: its events, and a way to cancel it from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from kit.demo.answers import Picture, Preview, Step
from kit.demo.client import ServerClient
from kit.errors import CancelledError, KitError

Event = Step | Preview | Picture


class Drawing:
    """Draws on a task of its own, so that cancelling need not wait for the next event."""

    def __init__(
        self, client: ServerClient, body: dict[str, Any], images: Sequence[Path] = ()
    ) -> None:
        self._events: asyncio.Queue[Event | KitError | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(client, body, images))

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        """Close the connection: the server stops before its next step."""
        self._task.cancel()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield what happens; raises UnreachableError, AnswerError, CancelledError."""
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, KitError):
                    raise event
                yield event
        finally:
            self._task.cancel()

    async def _run(
        self, client: ServerClient, body: dict[str, Any], images: Sequence[Path]
    ) -> None:
        end: KitError | None = None
        try:
            async with aclosing(client.draw(body, images)) as events:
                async for event in events:
                    self._events.put_nowait(event)
        except KitError as error:
            end = error
        except asyncio.CancelledError:
            end = CancelledError("cancelled")
        self._events.put_nowait(end)


class Drawings:
    """What each browser page draws now."""

    def __init__(self) -> None:
        self._running: dict[str, Drawing] = {}

    def start(
        self, page: str, client: ServerClient, body: dict[str, Any], images: Sequence[Path] = ()
    ) -> Drawing:
        """Begin; what the page drew before is cancelled."""
        self.cancel(page)
        drawing = self._running[page] = Drawing(client, body, images)
        return drawing

    def is_running(self, page: str) -> bool:
        """Whether a page draws now."""
        drawing = self._running.get(page)
        return drawing is not None and not drawing.has_ended

    def cancel(self, page: str) -> None:
        """Cancel what a page draws, if anything."""
        if drawing := self._running.pop(page, None):
            drawing.cancel()
