"""What a stream sends: OpenAI's image events and chat chunks, with the facts of every picture."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from kit.server.answers import ChatUsage, Facts, ImageContent, Usage


class ImageEvent(BaseModel):
    """What both image events carry."""

    b64_json: str
    background: Literal["opaque"] = "opaque"
    created_at: int
    output_format: Literal["png", "jpeg", "webp"]
    quality: Literal["auto"] = "auto"
    size: str
    image_index: int
    """Which of n pictures; OpenAI's events have no such field."""


class PartialImageEvent(ImageEvent):
    """A preview: what the picture would be if the last step's direction held to the end."""

    type: Literal["image_generation.partial_image", "image_edit.partial_image"]
    partial_image_index: int


class CompletedEvent(Facts, ImageEvent):
    """A finished picture."""

    type: Literal["image_generation.completed", "image_edit.completed"]
    id: str
    usage: Usage
    safety_identifier: str | None
    warnings: list[str]


class Delta(BaseModel):
    """What a chunk adds to a message; a field without a value is left out."""

    role: Literal["assistant"] | None = None
    content: list[ImageContent] | None = None

    @model_serializer(mode="wrap")
    def _without_nulls(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class PartialImage(BaseModel):
    """A preview, beside a delta that adds nothing: a client that joins deltas is not misled."""

    b64_json: str
    output_format: Literal["png", "jpeg", "webp"]
    size: str
    partial_image_index: int


class ChunkChoice(BaseModel):
    """One picture's part of a chunk."""

    index: int
    delta: Delta
    finish_reason: Literal["stop"] | None = None
    logprobs: None = None
    partial_image: PartialImage | None = None


class FinalChunkChoice(Facts, ChunkChoice):
    """The end of a choice: its picture, and how it was made."""

    finish_reason: Literal["stop"] = "stop"


class Chunk(BaseModel):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[FinalChunkChoice | ChunkChoice]
    usage: ChatUsage | None = None
    """In the last chunk, if stream_options asked for it."""

    warnings: list[str] | None = None
    """With a picture."""
