"""The bodies of answers: OpenAI's shapes with the facts of every picture beside them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from kit.request import ReplayRecord, ResolvedSampling


class ErrorDetail(BaseModel):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every answer that is no success."""

    error: ErrorDetail


class Metrics(BaseModel):
    """Where time and memory went; the same keys on every endpoint."""

    queue_time_s: float
    reference_time_s: float
    """Encoding of the reference images; in no step time."""

    first_step_time_s: float
    """The step that also computes the prefix."""

    step_times_s: list[float]
    preview_time_s: float
    decode_time_s: float
    encode_time_s: float
    """Writing the file; in no other time."""

    total_time_s: float
    """From submission to the decoded picture."""

    peak_memory_bytes: int
    prefix_tokens: int
    """Of one row, written by the first step only."""

    reference_tokens: int
    """Those of them that are reference images."""

    target_tokens: int
    """Of one row, written by every step."""

    cached_tokens: int
    """Leading tokens of each row that an earlier request had computed."""

    shared_tokens: int
    """Leading tokens that are the same in all rows of a rank: where they fill a page that was not
    cached, they are computed once."""

    num_rows: int
    num_pages: int
    kv_bytes: int
    tokens_written: list[int]


class Replay(BaseModel):
    """What it takes to make a picture again; it also stands in the file."""

    format: str
    record: ReplayRecord


class Facts(BaseModel):
    """How one picture was made."""

    seed: int
    sampling: ResolvedSampling
    metrics: Metrics
    replay: Replay


class TokenDetails(BaseModel):
    """Tokens by what they stand for."""

    image_tokens: int
    text_tokens: int


class Usage(BaseModel):
    """Tokens of one row of each picture: its prefix is the input, its target the output."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokenDetails
    output_tokens_details: TokenDetails


class ImageData(Facts):
    """One picture."""

    b64_json: str
    url: None = None
    revised_prompt: None = None


class ImagesAnswer(BaseModel):
    """The answer of /v1/images/generations."""

    id: str
    created: int
    model: str
    data: list[ImageData]
    background: Literal["opaque"] = "opaque"
    output_format: Literal["png", "jpeg", "webp"]
    size: str
    safety_identifier: str | None
    usage: Usage
    sampling: ResolvedSampling
    """Of the first picture."""

    metrics: Metrics
    """All pictures together."""

    warnings: list[str]


class ImageLink(BaseModel):
    """A picture as a data URL."""

    url: str


class ImageContent(BaseModel):
    """A picture as a part of a message."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageLink


class ChatMessage(BaseModel):
    """What the assistant says: one picture."""

    role: Literal["assistant"] = "assistant"
    content: list[ImageContent]
    refusal: None = None


class ChatChoice(Facts):
    """One picture as the answer of an assistant."""

    index: int
    message: ChatMessage
    finish_reason: Literal["stop"] = "stop"
    logprobs: None = None


class ChatUsage(BaseModel):
    """The same as `Usage`, by the names of chat completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    safety_identifier: str | None
    sampling: ResolvedSampling
    metrics: Metrics
    warnings: list[str]
