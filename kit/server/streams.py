"""Answers a running request with server-sent events.

Steps are SSE comments (`: picture 1 of 1, step 3 of 20`): clients skip them, proxies see life, and
a person with curl sees progress.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kit.engine.images import encode_image
from kit.errors import KitError
from kit.request import StepEvent
from kit.server.errors import error_content, internal_error
from kit.server.events import (
    Chunk,
    ChunkChoice,
    CompletedEvent,
    Delta,
    FinalChunkChoice,
    PartialImage,
    PartialImageEvent,
)
from kit.server.normalise import OutputFormat, PublicRequest
from kit.server.pictures import (
    Picture,
    all_warnings,
    chat_content,
    chat_usage,
    encode,
    facts,
    usage,
)
from kit.server.running import ImageStep, RunningRequest
from kit.server.sse import EventStream, sse


@dataclass(frozen=True)
class Preview:
    """A picture that is not done yet, encoded."""

    image_index: int
    partial_image_index: int
    b64: str
    size: str


class Events(Protocol):
    """How one endpoint spells what happens."""

    error_name: str | None
    """Name of the event of an error."""

    def opening(self) -> str:
        """Return what comes before all else."""
        ...

    def preview(self, preview: Preview) -> str:
        """Return the event of a preview."""
        ...

    def picture(self, index: int, picture: Picture) -> str:
        """Return the event of a finished picture."""
        ...

    def closing(self) -> str:
        """Return what comes after all pictures."""
        ...


def stream(running: RunningRequest, events: Events) -> EventStream:
    """Answer with the events of a running request; a client that leaves cancels it."""
    return EventStream(_render(running, events), on_end=running.cancel)


class ImageEvents:
    """OpenAI's events of an images endpoint, image_generation.* or image_edit.*."""

    error_name: str | None = "error"

    def __init__(
        self,
        public: PublicRequest,
        kind: Literal["image_generation", "image_edit"] = "image_generation",
    ) -> None:
        self._public, self._kind = public, kind

    def opening(self) -> str:
        return ""

    def preview(self, preview: Preview) -> str:
        event = PartialImageEvent(
            type=f"{self._kind}.partial_image",
            b64_json=preview.b64,
            created_at=int(time.time()),
            output_format=self._public.output.image_format,
            size=preview.size,
            image_index=preview.image_index,
            partial_image_index=preview.partial_image_index,
        )
        return sse(event, name=event.type)

    def picture(self, index: int, picture: Picture) -> str:
        event = CompletedEvent(
            type=f"{self._kind}.completed",
            id=self._public.request_id,
            b64_json=picture.b64,
            created_at=int(time.time()),
            output_format=self._public.output.image_format,
            size=picture.size,
            image_index=index,
            usage=usage([picture]),
            safety_identifier=self._public.safety_identifier,
            warnings=all_warnings(self._public, [picture]),
            **facts(picture),
        )
        return sse(event, name=event.type)

    def closing(self) -> str:
        return ""


class ChatChunks:
    """OpenAI's chat.completion.chunk events; the last of a choice carries its picture."""

    error_name: str | None = None  # chunks have no names

    def __init__(self, public: PublicRequest, model: str, *, include_usage: bool) -> None:
        self._public, self._model, self._include_usage = public, model, include_usage
        self._created = int(time.time())
        self._pictures: list[Picture] = []

    def opening(self) -> str:
        choices = [
            ChunkChoice(index=index, delta=Delta(role="assistant"))
            for index in range(len(self._public.children))
        ]
        return sse(self._chunk(choices=choices))

    def preview(self, preview: Preview) -> str:
        partial = PartialImage(
            b64_json=preview.b64,
            output_format=self._public.output.image_format,
            size=preview.size,
            partial_image_index=preview.partial_image_index,
        )
        choice = ChunkChoice(index=preview.image_index, delta=Delta(), partial_image=partial)
        return sse(self._chunk(choices=[choice]))

    def picture(self, index: int, picture: Picture) -> str:
        self._pictures.append(picture)
        delta = Delta(content=chat_content(picture))
        choice = FinalChunkChoice(index=index, delta=delta, **facts(picture))
        warnings = all_warnings(self._public, [picture])
        return sse(self._chunk(choices=[choice], warnings=warnings))

    def closing(self) -> str:
        done = "data: [DONE]\n\n"
        if not self._include_usage:
            return done
        return sse(self._chunk(choices=[], usage=chat_usage(self._pictures))) + done

    def _chunk(self, **fields: Any) -> Chunk:
        return Chunk(id=self._public.request_id, created=self._created, model=self._model, **fields)


async def _render(running: RunningRequest, events: Events) -> AsyncGenerator[str, None]:
    public, num_previews = running.public, Counter[int]()
    try:
        if opening := events.opening():
            yield opening
        async with aclosing(running.events()) as happened:
            async for event in happened:
                if isinstance(event, ImageStep):
                    yield _comment(event.index, len(public.children), event.event)
                    if event.event.preview is not None:
                        number = num_previews[event.index]
                        num_previews[event.index] += 1
                        preview = await asyncio.to_thread(_preview, event, number, public.output)
                        yield events.preview(preview)
                else:
                    picture = await asyncio.to_thread(encode, event.result, public.output)
                    yield events.picture(event.index, picture)
        if closing := events.closing():
            yield closing
    except KitError as error:
        yield sse(error_content(error), name=events.error_name)
    except Exception as error:
        yield sse(internal_error(error, "a stream"), name=events.error_name)


def _preview(step: ImageStep, number: int, output: OutputFormat) -> Preview:
    image = step.event.preview
    assert image is not None, "only steps with a preview come here"
    encoded = encode_image(image, output.image_format, quality=output.quality)
    return Preview(
        image_index=step.index,
        partial_image_index=number,
        b64=base64.b64encode(encoded.data).decode(),
        size=f"{image.shape[1]}x{image.shape[0]}",
    )


def _comment(index: int, num_images: int, step: StepEvent) -> str:
    return f": picture {index + 1} of {num_images}, step {step.step} of {step.num_steps}\n\n"
