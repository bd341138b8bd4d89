"""The bodies of the endpoints, as their clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kit.server.fields import (
    MAX_LABEL_CHARS,
    MAX_PROMPT_CHARS,
    ImageFields,
    NoEffect,
    NotSupported,
    StrictModel,
    documented,
)

_TEXT_ONLY = "a picture is the only thing this server makes"
_NO_TOOLS = "the model calls no tools"
_RASTER = "output formats are png, jpeg and webp"

NO_MASK = "the model takes no mask, say in the prompt what to change"

MAX_MESSAGES = 256
MAX_PARTS = 256


class PublicFields(ImageFields):
    """What JSON bodies and forms share."""

    model: str | None = documented(
        "Name of the served model, see /v1/models; absent means that one"
    )
    stream: bool | None = documented("Answer as server-sent events")
    user: str | None = documented("Echoed as safety_identifier", maxLength=MAX_LABEL_CHARS)
    safety_identifier: str | None = documented("Echoed in the answer", maxLength=MAX_LABEL_CHARS)


class Body(PublicFields):
    """What JSON bodies share: fields of the kit beside OpenAI's, or in `extra_body`."""

    extra_body: ImageFields | None = documented(
        "Means the same as its fields beside it; a field in both places must agree"
    )


class OpenAIImageFields(StrictModel):
    """OpenAI's fields of pictures that mean little here."""

    response_format: str | None = documented(
        "b64_json; the server keeps no files that a url could name", enum=["b64_json", None]
    )
    quality: Annotated[
        Any,
        NotSupported("num_inference_steps decides it", ("auto", "standard")),
    ] = None
    background: Annotated[
        Any, NotSupported("pictures have no transparency", ("auto", "opaque"))
    ] = None
    moderation: Annotated[Any, NotSupported("nothing is moderated here", ("auto", "low"))] = None
    style: Annotated[Any, NotSupported("say it in the prompt")] = None
    complexity: Annotated[Any, NotSupported("the model plans nothing before it draws")] = None
    frame_count: Annotated[Any, NotSupported(_RASTER)] = None
    frame_duration_ms: Annotated[Any, NotSupported(_RASTER)] = None
    svg: Annotated[Any, NotSupported(_RASTER)] = None


class ImageGenerationBody(OpenAIImageFields, Body):
    """POST /v1/images/generations and POST /v1/jobs."""

    prompt: str = Field(
        description="What to draw",
        json_schema_extra={"minLength": 1, "maxLength": MAX_PROMPT_CHARS},
    )


class ImageEditForm(OpenAIImageFields, PublicFields):
    """The fields of POST /v1/images/edits beside its files; all are text in a form."""

    prompt: str = Field(
        description="What to make of the reference images",
        json_schema_extra={"minLength": 1, "maxLength": MAX_PROMPT_CHARS},
    )
    extra_body: Annotated[
        Any, NotSupported("a form has no second level, send the fields themselves", ({},))
    ] = None
    url: Annotated[Any, NotSupported("the server fetches nothing, send files as image")] = None
    reference_image: Annotated[Any, NotSupported("send the file as image")] = None
    mask: Annotated[Any, NotSupported(NO_MASK)] = None
    mask_image: Annotated[Any, NotSupported(NO_MASK)] = None
    markup: Annotated[Any, NotSupported(NO_MASK)] = None
    input_fidelity: Annotated[
        Any, NotSupported("reference images are always read in full", ("low", "high"))
    ] = None


class TextPart(StrictModel):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageURL(StrictModel):
    """A reference image as a data URL."""

    url: str
    detail: Annotated[Any, NoEffect()] = None


class ImagePart(StrictModel):
    """A reference image."""

    type: Literal["image_url"]
    image_url: ImageURL | str


class OtherPart(StrictModel):
    """A part that a picture cannot be drawn from."""

    type: Literal["input_audio", "file", "video_url", "refusal"]
    input_audio: Any = None
    file: Any = None
    video_url: Any = None
    refusal: Any = None


Part = Annotated[TextPart | ImagePart | OtherPart, Field(discriminator="type")]


class Message(StrictModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(max_length=MAX_PARTS)]
    name: str | None = None


class StreamOptions(StrictModel):
    """What a stream carries beside the picture."""

    include_usage: bool | None = documented("End with a chunk that holds `usage`")
    include_obfuscation: Annotated[Any, NoEffect()] = None


class ChatCompletionBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    modalities: list[str] | None = documented(
        'Must be ["image"]; absent means that', enum=[["image"], None]
    )
    stream_options: StreamOptions | None = documented("Goes with stream")

    response_format: Annotated[Any, NotSupported(_TEXT_ONLY, ({"type": "text"},))] = None
    audio: Annotated[Any, NotSupported(_TEXT_ONLY)] = None
    tools: Annotated[Any, NotSupported(_NO_TOOLS, ([],))] = None
    tool_choice: Annotated[Any, NotSupported(_NO_TOOLS, ("none", "auto"))] = None
    functions: Annotated[Any, NotSupported(_NO_TOOLS, ([],))] = None
    function_call: Annotated[Any, NotSupported(_NO_TOOLS, ("none", "auto"))] = None
    web_search_options: Annotated[Any, NotSupported(_NO_TOOLS)] = None

    frequency_penalty: Annotated[Any, NoEffect()] = None
    logit_bias: Annotated[Any, NoEffect()] = None
    logprobs: Annotated[Any, NoEffect()] = None
    max_completion_tokens: Annotated[Any, NoEffect()] = None
    max_tokens: Annotated[Any, NoEffect()] = None
    metadata: Annotated[Any, NoEffect()] = None
    parallel_tool_calls: Annotated[Any, NoEffect()] = None
    prediction: Annotated[Any, NoEffect()] = None
    presence_penalty: Annotated[Any, NoEffect()] = None
    prompt_cache_key: Annotated[Any, NoEffect()] = None
    reasoning_effort: Annotated[Any, NoEffect()] = None
    service_tier: Annotated[Any, NoEffect()] = None
    stop: Annotated[Any, NoEffect()] = None
    store: Annotated[Any, NoEffect()] = None
    temperature: Annotated[Any, NoEffect()] = None
    top_logprobs: Annotated[Any, NoEffect()] = None
    top_p: Annotated[Any, NoEffect()] = None
    verbosity: Annotated[Any, NoEffect()] = None


def known_fields() -> tuple[str, ...]:
    """Return the name of every field of every body, for hints at misspelled ones."""
    models = (ImageGenerationBody, ImageEditForm, ChatCompletionBody, StreamOptions)
    parts = (Message, TextPart, ImagePart, ImageURL, OtherPart)
    return tuple(dict.fromkeys(name for model in (*models, *parts) for name in model.model_fields))
