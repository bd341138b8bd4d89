"""A public request at work: its pictures run, report and end together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass

from kit.engine.engine import ImageEngine
from kit.engine.pending import RequestHandle
from kit.errors import KitError
from kit.request import GenerationResult, OnStep, StepEvent
from kit.server.disconnect import cancel_all
from kit.server.normalise import PublicRequest


@dataclass(frozen=True)
class ImageStep:
    """Image `index` made a step."""

    index: int
    event: StepEvent


@dataclass(frozen=True)
class ImageDone:
    """Image `index` is finished."""

    index: int
    result: GenerationResult


class RunningRequest:
    """The submitted children of one public request; all methods belong to one event loop."""

    def __init__(self, engine: ImageEngine, public: PublicRequest) -> None:
        self.public = public
        self._engine = engine
        self._handles: list[RequestHandle] = []
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[ImageStep | ImageDone | BaseException] = asyncio.Queue()

    @property
    def handles(self) -> tuple[RequestHandle, ...]:
        """The children, in the order of their seeds."""
        return tuple(self._handles)

    async def submit(self) -> None:
        """Queue all children, or none: then the refusal of the first refused one is raised.

        Tokenising takes milliseconds, so a thread does it.
        """
        submitting = asyncio.ensure_future(asyncio.to_thread(self._submit_all))
        try:
            await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(self._give_up)
            raise

    async def events(self) -> AsyncGenerator[ImageStep | ImageDone, None]:
        """Yield what happens until every picture is done; raises the first error of a child.

        Whatever ends the iteration, children that are not done by then are cancelled: close the
        iterator when it is not exhausted.
        """
        num_left = len(self._handles)
        try:
            while num_left:
                event = await self._events.get()
                if isinstance(event, BaseException):
                    raise event
                num_left -= isinstance(event, ImageDone)
                yield event
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the children that are not done."""
        cancel_all(self._engine, self._handles)

    def _submit_all(self) -> None:
        try:
            for index, child in enumerate(self.public.children):
                handle = self._engine.submit(child, self._step_reporter(index))
                self._handles.append(handle)
                handle.future.add_done_callback(self._end_reporter(index))
        except KitError:
            self.cancel()
            raise

    def _give_up(self, submitting: asyncio.Future[None]) -> None:
        if submitting.cancelled() or submitting.exception() is None:
            self.cancel()

    def _step_reporter(self, index: int) -> OnStep:
        def report(event: StepEvent) -> None:
            self._post(ImageStep(index, event))

        return report

    def _end_reporter(self, index: int) -> Callable[[Future[GenerationResult]], None]:
        def report(future: Future[GenerationResult]) -> None:
            error = future.exception()
            self._post(ImageDone(index, future.result()) if error is None else error)

        return report

    def _post(self, event: ImageStep | ImageDone | BaseException) -> None:
        """Hand an event from the engine's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
