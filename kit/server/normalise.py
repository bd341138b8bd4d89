"""One way from every endpoint's body to the requests that the engine runs."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import BaseModel

from kit.engine.images import IMAGE_FORMATS, ImageFormat
from kit.engine.preprocess import MAX_PARTIAL_IMAGES, MAX_SEED
from kit.errors import InvalidRequestError
from kit.request import GenerationRequest, ReferenceImage, SamplingParams, Template
from kit.server.fields import (
    MAX_IMAGES,
    MAX_LABEL_CHARS,
    MAX_PROMPT_CHARS,
    MAX_TEXT_CHARS,
    SYSTEM_PROMPT_KINDS,
    ImageFields,
    NoEffect,
    markers,
)
from kit.server.protocol import Body, OpenAIImageFields, PublicFields
from kit.tokenizer.buckets import parse_size

_SHARED = ImageFields.model_fields.keys()


@dataclass(frozen=True)
class Defaults:
    """What a request gets where it says nothing."""

    seed: int | None
    """Of the deployment; None draws one."""

    timeout_s: float | None


@dataclass(frozen=True)
class OutputFormat:
    """How pictures are sent."""

    image_format: ImageFormat
    quality: int | None
    """Of jpeg and webp; None takes the encoder's own default."""


@dataclass(frozen=True)
class PublicRequest:
    """What one call of an endpoint asks for: n pictures, each a request of the engine."""

    request_id: str
    children: tuple[GenerationRequest, ...]
    output: OutputFormat
    stream: bool
    safety_identifier: str | None
    warnings: tuple[str, ...]


def public_request(
    body: PublicFields,
    *,
    prompt: str,
    defaults: Defaults,
    system_message: str | None = None,
    warnings: tuple[str, ...] = (),
) -> PublicRequest:
    """Return what a body asks for; raises InvalidRequestError naming the field.

    Image i of n has the seed (seed + i) mod 2^63, so that each can be made again alone.
    """
    fields, own = _merge(body), type(body).model_fields.keys() - ImageFields.model_fields.keys()
    named = [*warnings, *_check_markers(body, own), *_check_markers(fields, _SHARED)]
    if isinstance(body, OpenAIImageFields):
        _check_response_format(body.response_format)
    _check_text("prompt", prompt, MAX_PROMPT_CHARS)
    _check_text("cot_text", fields.cot_text, MAX_TEXT_CHARS)
    num_images, stream = _num_images(fields), bool(body.stream)
    height, width = _size(fields)
    request_id = f"img-{uuid.uuid4().hex}"
    first = GenerationRequest(
        prompt=prompt,
        sampling=SamplingParams(
            height=height,
            width=width,
            num_inference_steps=fields.num_inference_steps,
            guidance_scale=fields.guidance_scale,
            seed=_first_seed(fields, defaults, num_images),
            flow_shift=fields.flow_shift,
        ),
        system_prompt=_system_prompt(fields, system_message),
        cot_text=fields.cot_text,
        reference_seed=fields.reference_seed,
        template=cast("Template | None", fields.template),
        request_id=request_id,
        num_partial_images=_partial_images(fields, stream=stream),
        timeout_s=defaults.timeout_s if fields.timeout_s is None else fields.timeout_s,
    )
    return PublicRequest(
        request_id=request_id,
        children=_children(first, num_images),
        output=_output(fields),
        stream=stream,
        safety_identifier=_label(body),
        warnings=tuple(dict.fromkeys(named)),
    )


def with_images(public: PublicRequest, images: tuple[ReferenceImage, ...]) -> PublicRequest:
    """Add reference images to a request.

    All its pictures draw their latents with one seed, the first picture's unless another is named:
    so they have one prefix, and each can be made again alone by its two seeds.
    """
    first = public.children[0]
    seed = first.reference_seed
    if seed is None and images and len(public.children) > 1:
        seed = first.sampling.seed
    children = (replace(c, images=images, reference_seed=seed) for c in public.children)
    return replace(public, children=tuple(children))


def image_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of image `index` of a request whose first has `seed`."""
    if seed is None or index == 0 or not 0 <= seed <= MAX_SEED:
        return seed  # what is out of range is refused with its own value
    return (seed + index) % (MAX_SEED + 1)


def _first_seed(fields: ImageFields, defaults: Defaults, num_images: int) -> int | None:
    """The engine draws a missing seed for one picture; several need one to count on from."""
    if fields.seed is not None or num_images == 1:
        return fields.seed
    # 31 bits: every client's integer type can hold and send back the seed it was told.
    return secrets.randbits(31) if defaults.seed is None else defaults.seed


def _children(first: GenerationRequest, num_images: int) -> tuple[GenerationRequest, ...]:
    if num_images == 1:
        return (first,)
    return tuple(
        replace(
            first,
            request_id=f"{first.request_id}-{index}",
            parent_id=first.request_id,
            sampling=replace(first.sampling, seed=image_seed(first.sampling.seed, index)),
        )
        for index in range(num_images)
    )


def _merge(body: PublicFields) -> ImageFields:
    """Lay `extra_body` and the flat fields together; a field in both must agree."""
    flat = _given(body)
    extra = body.extra_body if isinstance(body, Body) else None
    nested = {} if extra is None else _given(extra)
    for name in flat.keys() & nested.keys():
        if flat[name] != nested[name]:
            raise InvalidRequestError(
                f"{name}: got {nested[name]!r:.100} in extra_body and {flat[name]!r:.100} beside "
                f"it; send one of them",
                param=name,
            )
    return ImageFields.model_construct(**(flat | nested))


def _given(body: BaseModel) -> dict[str, Any]:
    """The image fields that a body sets; null is as good as absent."""
    values = {name: getattr(body, name) for name in ImageFields.model_fields}
    return {name: value for name, value in values.items() if value is not None}


def _check_markers(body: BaseModel, names: AbstractSet[str]) -> list[str]:
    """Name what has no effect; refuse what asks for something that is not there."""
    warnings = []
    for name, marker in markers(type(body)).items():
        value = getattr(body, name)
        if value is None or name not in names:
            continue
        if isinstance(marker, NoEffect):
            warnings.append(f"{name} has no effect on a picture")
        elif marker.accepts(value):
            warnings.append(f"{name}={value!r} changes nothing: {marker.reason}")
        else:
            raise InvalidRequestError(
                f"{name}: got {value!r:.100}, which is not supported: {marker.reason}", param=name
            )
    return warnings


def _check_response_format(value: str | None) -> None:
    if value not in (None, "b64_json"):
        raise InvalidRequestError(
            f"response_format: got {value!r:.40}; this server keeps no files that a url could "
            f"name, send b64_json or leave it out",
            param="response_format",
        )


def _num_images(fields: ImageFields) -> int:
    """The number has two names; both may be given if they agree."""
    n, other = fields.n, fields.num_outputs_per_prompt
    if n is not None and other is not None and n != other:
        raise InvalidRequestError(
            f"n: got {n!r:.40}, but num_outputs_per_prompt is {other!r:.40}; send one of them",
            param="n",
        )
    num_images = next((number for number in (n, other) if number is not None), 1)
    _check_range("n", num_images, 1, MAX_IMAGES)
    return num_images


def _size(fields: ImageFields) -> tuple[int | None, int | None]:
    height, width = fields.height, fields.width
    if fields.size in (None, "auto"):
        return height, width
    assert fields.size is not None, "looked at just above"
    size_width, size_height = parse_size(fields.size)
    if height not in (None, size_height) or width not in (None, size_width):
        raise InvalidRequestError(
            f"size: {fields.size} contradicts width={width}, height={height}; send one of them",
            param="size",
        )
    return size_height, size_width


def _system_prompt(fields: ImageFields, message: str | None) -> str | None:
    asked, kind = fields.system_prompt, fields.use_system_prompt
    if message is not None and asked not in (None, message):
        raise InvalidRequestError(
            "system_prompt: differs from the system message; send one of them",
            param="system_prompt",
        )
    text = message if asked is None else asked
    _check_text("system_prompt", text, MAX_TEXT_CHARS)
    if kind not in (None, *SYSTEM_PROMPT_KINDS):
        raise InvalidRequestError(
            f"use_system_prompt: got {kind!r:.100}; its text does not ship with the kit, send the "
            f"text as system_prompt (known are {', '.join(SYSTEM_PROMPT_KINDS)})",
            param="use_system_prompt",
        )
    if kind == "none" and text is not None:
        raise InvalidRequestError(
            "use_system_prompt: is 'none', but there is a system prompt; send one of them",
            param="use_system_prompt",
        )
    if kind == "custom" and text is None:
        raise InvalidRequestError(
            "use_system_prompt: is 'custom', but system_prompt is absent", param="system_prompt"
        )
    return text


def _label(body: PublicFields) -> str | None:
    """The caller's name for its own user; it is echoed, so it must be sane."""
    for name in ("safety_identifier", "user"):
        text: str | None = getattr(body, name)
        _check_text(name, text, MAX_LABEL_CHARS)
        if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidRequestError(
                f"{name}: expected valid Unicode, got half of a surrogate pair", param=name
            )
    return body.safety_identifier or body.user or None


def _partial_images(fields: ImageFields, *, stream: bool) -> int:
    num = fields.partial_images or 0
    _check_range("partial_images", num, 0, MAX_PARTIAL_IMAGES)
    if num and not stream:
        raise InvalidRequestError(
            f"partial_images: got {num}, but only a stream has partial pictures; "
            f"send stream: true, or leave it out",
            param="partial_images",
        )
    return num


def _output(fields: ImageFields) -> OutputFormat:
    image_format = fields.output_format or "png"
    if image_format not in IMAGE_FORMATS:
        raise InvalidRequestError(
            f"output_format: got {image_format!r:.40}, supported are {', '.join(IMAGE_FORMATS)}",
            param="output_format",
        )
    quality = fields.output_compression
    if quality is not None:
        _check_range("output_compression", quality, 0, 100)
        if image_format == "png":
            if quality != 100:
                raise InvalidRequestError(
                    f"output_compression: got {quality}, but png is lossless; "
                    f"send output_format jpeg or webp, or leave it out",
                    param="output_compression",
                )
            quality = None
    return OutputFormat(image_format, quality)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequestError(
            f"{name}: got {value!r:.40}, expected an integer from {low} to {high}", param=name
        )


def _check_text(name: str, text: str | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise InvalidRequestError(
            f"{name}: has {len(text)} characters, at most {limit} are read", param=name
        )
