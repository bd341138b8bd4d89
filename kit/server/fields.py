"""The fields of a picture that every endpoint takes, in one table.

The bodies are strict: a number is no text, true is no number, and a name that is not here is
refused with the nearest one. Ranges stand in the schema for readers; they are checked once, where
the request is prepared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kit.engine.images import IMAGE_FORMATS
from kit.engine.preprocess import (
    MAX_FLOW_SHIFT,
    MAX_GUIDANCE,
    MAX_PARTIAL_IMAGES,
    MAX_SEED,
    MAX_STEPS,
    MAX_TIMEOUT_S,
    MIN_FLOW_SHIFT,
)

MAX_IMAGES = 10
"""Of one request, as in OpenAI's API."""

MAX_PROMPT_CHARS = 32_000
"""As in OpenAI's API; the model's positions end much earlier."""

MAX_TEXT_CHARS = 100_000
"""Of a system prompt or a chain of thought."""

MAX_LABEL_CHARS = 512
"""Of the caller's name for its user."""

SYSTEM_PROMPT_KINDS = ("none", "custom")
"""Values of use_system_prompt that this kit can honour."""


@dataclass(frozen=True)
class NoEffect:
    """Marks a field that cannot change a picture; a value is accepted and named in `warnings`."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema) | {"description": "Accepted without effect, see `warnings`."}


@dataclass(frozen=True)
class NotSupported:
    """Marks a known field that this kit cannot honour; neutral values are named in `warnings`."""

    reason: str
    neutral: tuple[object, ...] = ()
    """Values that ask for nothing."""

    def accepts(self, value: object) -> bool:
        """Whether `value` is one of the neutral ones; 1 is not true."""
        return any(type(value) is type(one) and value == one for one in self.neutral)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        description = f"Not supported: {self.reason}."
        return handler(schema) | {"description": description, "enum": [*self.neutral, None]}


_DEPLOYED = "the deploy file decides it for all requests"
_OTHER_MODEL = "HunyuanImage-3.0 has no such input"


def documented(description: str, **keywords: Any) -> Any:
    """A field that may be absent or null, with JSON Schema keywords that others enforce."""
    return Field(default=None, description=description, json_schema_extra=keywords or None)


class StrictModel(BaseModel):
    """Refuses unknown names and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ImageFields(StrictModel):
    """Fields beside OpenAI's own; flat in a body, or nested in its `extra_body`."""

    n: int | None = documented("Number of pictures", minimum=1, maximum=MAX_IMAGES)
    num_outputs_per_prompt: int | None = documented("The same as n", minimum=1, maximum=MAX_IMAGES)
    size: str | None = documented(
        "WIDTHxHEIGHT from the list of /v1/server/info, or auto: that of the first reference image",
        pattern="^(auto|[1-9][0-9]{0,5}x[1-9][0-9]{0,5})$",
    )
    height: int | None = documented("Pixels; goes with width", minimum=1, maximum=1 << 20)
    width: int | None = documented("Pixels; goes with height", minimum=1, maximum=1 << 20)
    num_inference_steps: int | None = documented("Denoising steps", minimum=1, maximum=MAX_STEPS)
    guidance_scale: float | None = documented(
        "Classifier-free guidance; at most 1 runs one row", minimum=0, maximum=MAX_GUIDANCE
    )
    flow_shift: float | None = documented(
        "Shift of the flow-matching schedule", minimum=MIN_FLOW_SHIFT, maximum=MAX_FLOW_SHIFT
    )
    seed: int | None = documented(
        "Seed of the first picture; the next ones count on from it", minimum=0, maximum=MAX_SEED
    )
    reference_seed: int | None = documented(
        "Seed of the latents of reference images, one for all pictures; absent means that of the "
        "first picture",
        minimum=0,
        maximum=MAX_SEED,
    )
    template: str | None = documented("Sequence template", enum=["pretrain", "instruct", None])
    system_prompt: str | None = documented("Text before the prompt", maxLength=MAX_TEXT_CHARS)
    use_system_prompt: str | None = documented(
        "none, or custom with system_prompt", enum=[*SYSTEM_PROMPT_KINDS, None]
    )
    cot_text: str | None = documented(
        "Chain of thought or recaption, instruct template only", maxLength=MAX_TEXT_CHARS
    )
    output_format: str | None = documented("Format of the file", enum=[*IMAGE_FORMATS, None])
    output_compression: int | None = documented(
        "Quality of jpeg and webp in per cent", minimum=0, maximum=100
    )
    partial_images: int | None = documented(
        "Previews in a stream", minimum=0, maximum=MAX_PARTIAL_IMAGES
    )
    timeout_s: float | None = documented(
        "Seconds until the request is given up, time in the queue included",
        exclusiveMinimum=0,
        maximum=MAX_TIMEOUT_S,
    )

    negative_prompt: Annotated[
        Any,
        NotSupported("the model takes no negative prompt, its other branch is empty", ("",)),
    ] = None
    true_cfg_scale: Annotated[
        Any, NotSupported("use guidance_scale, the model has one guidance", (1, 1.0))
    ] = None
    guidance_scale_2: Annotated[Any, NotSupported(_OTHER_MODEL)] = None
    strength: Annotated[Any, NotSupported("the model edits by words and has no strength")] = None
    lora: Annotated[Any, NotSupported("this kit loads no LoRA", ({}, []))] = None
    generator_device: Annotated[
        Any, NotSupported("noise is drawn on the CPU whatever the device", ("cpu",))
    ] = None
    bot_task: Annotated[
        Any,
        NotSupported("the language half of the model is not run, send cot_text", ("image",)),
    ] = None
    infer_align_image_size: Annotated[
        Any, NotSupported("reference images are cut to a size of the model, see size", (False,))
    ] = None
    vae_use_slicing: Annotated[Any, NotSupported(_DEPLOYED, (False,))] = None
    vae_use_tiling: Annotated[Any, NotSupported(_DEPLOYED, (False,))] = None
    layers: Annotated[Any, NotSupported(_OTHER_MODEL)] = None
    num_frames: Annotated[Any, NotSupported("the model draws single pictures", (1,))] = None
    extra_params: Annotated[
        Any, NotSupported("send the fields themselves, each by its name", ({},))
    ] = None


def markers(model: type[BaseModel]) -> dict[str, NoEffect | NotSupported]:
    """Return the fields of a model that carry a marker, with it."""
    return {
        name: marker
        for name, info in model.model_fields.items()
        for marker in info.metadata
        if isinstance(marker, NoEffect | NotSupported)
    }
