"""The body of a chat completion that asks for an image, and how it becomes a GenerationRequest."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kit.errors import InvalidRequestError
from kit.request import GenerationRequest, SamplingParams, Template
from kit.tokenizer.buckets import parse_size

# OpenAI chat fields that cannot change an image; a value is accepted and named in `warnings`.
_NO_EFFECT = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "presence_penalty",
        "safety_identifier",
        "service_tier",
        "stop",
        "store",
        "temperature",
        "top_logprobs",
        "top_p",
        "user",
    }
)


class TextPart(BaseModel):
    """One text part of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class ImageFields(BaseModel):
    """The kit's own fields: nested in `extra_body`, or flat as the openai client sends them."""

    model_config = ConfigDict(extra="forbid")

    height: int | None = Field(default=None, strict=True)
    width: int | None = Field(default=None, strict=True)
    size: str | None = None
    num_inference_steps: int | None = Field(default=None, strict=True)
    guidance_scale: float | None = Field(default=None, strict=True)
    seed: int | None = Field(default=None, strict=True)
    flow_shift: float | None = Field(default=None, strict=True)
    system_prompt: str | None = None
    cot_text: str | None = None
    template: Template | None = None


class ChatCompletionRequest(BaseModel):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    modalities: list[str] | None = None
    n: int | None = Field(default=None, strict=True)
    stream: bool | None = Field(default=None, strict=True)
    extra_body: dict[str, Any] | None = None


def to_generation_request(body: ChatCompletionRequest) -> tuple[GenerationRequest, list[str]]:
    """Return the request and the warnings that its answer must carry.

    Raises InvalidRequestError naming the field.
    """
    warnings = _check_modalities(body.modalities)
    if body.n not in (None, 1):
        raise InvalidRequestError(f"n: got {body.n}, this version returns one image", param="n")
    if body.stream:
        raise InvalidRequestError(
            "stream: this version answers when the image is done; leave it out or send false",
            param="stream",
        )
    fields, unused = _image_fields(body)
    warnings += [f"{name} has no effect on an image" for name in unused]
    return _build(body.messages, fields), warnings


def _check_modalities(modalities: list[str] | None) -> list[str]:
    if modalities is None:
        return ['modalities was absent and taken as ["image"]']
    if modalities != ["image"]:
        raise InvalidRequestError(
            f'modalities: got {modalities!r}, this server makes images; send ["image"]',
            param="modalities",
        )
    return []


def _image_fields(body: ChatCompletionRequest) -> tuple[ImageFields, list[str]]:
    """Merge the nested and the flat spelling; the same field twice must agree."""
    flat, nested = dict(body.model_extra or {}), dict(body.extra_body or {})
    unused = sorted(name for name in flat if name in _NO_EFFECT)
    flat = {name: value for name, value in flat.items() if name not in _NO_EFFECT}
    for name in flat.keys() & nested.keys():
        if flat[name] != nested[name]:
            raise InvalidRequestError(
                f"{name}: got {nested[name]!r} in extra_body and {flat[name]!r} beside it; "
                f"send one of them",
                param=name,
            )
    merged = flat | nested
    for name in merged:
        if name not in ImageFields.model_fields:
            near = difflib.get_close_matches(name, ImageFields.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "it is no field of this API"
            raise InvalidRequestError(f"{name}: unknown field; {hint}", param=name)
    return ImageFields.model_validate(merged), unused


def _build(messages: list[Message], fields: ImageFields) -> GenerationRequest:
    prompt = "\n".join(m.text for m in messages if m.role == "user")
    system = "\n".join(m.text for m in messages if m.role in ("system", "developer")) or None
    if any(m.role == "assistant" for m in messages):
        raise InvalidRequestError(
            "messages: an assistant message cannot be continued by this model; send its text as "
            "cot_text or leave it out",
            param="messages",
        )
    if system is not None and fields.system_prompt not in (None, system):
        raise InvalidRequestError(
            "system_prompt: differs from the system message; send one of them",
            param="system_prompt",
        )
    height, width = fields.height, fields.width
    if fields.size is not None and fields.size != "auto":
        size_width, size_height = parse_size(fields.size)
        if height not in (None, size_height) or width not in (None, size_width):
            raise InvalidRequestError(
                f"size: {fields.size} contradicts width={width}, height={height}", param="size"
            )
        height, width = size_height, size_width
    sampling = SamplingParams(
        height=height,
        width=width,
        num_inference_steps=fields.num_inference_steps,
        guidance_scale=fields.guidance_scale,
        seed=fields.seed,
        flow_shift=fields.flow_shift,
    )
    return GenerationRequest(
        prompt=prompt,
        sampling=sampling,
        system_prompt=fields.system_prompt or system,
        cot_text=fields.cot_text,
        template=fields.template,
    )
