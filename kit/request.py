"""What a user asks for, what it resolves to, and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

Template = Literal["pretrain", "instruct"]


@dataclass(frozen=True)
class SamplingParams:
    """How to sample; None takes the deployment's default, then the checkpoint's."""

    height: int | None = None
    """Image height in pixels; with `width` it must be one of the checkpoint's buckets. With
    reference images, None takes the bucket of the first."""

    width: int | None = None
    """Image width in pixels."""

    num_inference_steps: int | None = None
    """Denoising steps, 1 to 1000."""

    guidance_scale: float | None = None
    """Classifier-free guidance, 0 to 100; at most 1 runs one row."""

    seed: int | None = None
    """Seed of the initial noise, 0 to 2**63 - 1; None draws one, which the result names."""

    flow_shift: float | None = None
    """Shift of the flow-matching schedule, 0.01 to 100."""


@dataclass(frozen=True)
class RecordedImage:
    """A picture's size and the hash of its pixels."""

    height: int
    width: int
    sha256: str
    """Over the uint8 [height, width, 3] pixels, row by row."""


@dataclass(frozen=True)
class ReferenceImage:
    """A picture to start from, as one checkpoint reads it; `Preprocessor.read_image` makes it.

    Not larger than the model's input, whatever the file was: queued requests hold it.
    """

    source: RecordedImage
    """The decoded picture, upright."""

    latent_pixels: npt.NDArray[np.uint8] = field(compare=False, repr=False)
    """uint8 [height, width, 3] of its bucket, for the autoencoder."""

    patch_pixels: npt.NDArray[np.uint8] = field(compare=False, repr=False)
    """uint8 [rows * patch, columns * patch, 3], for the vision tower."""

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all that the model sees of it: both pictures, each behind its shape."""
        digest = hashlib.sha256()
        for pixels in (self.latent_pixels, self.patch_pixels):
            digest.update(f"{pixels.shape} {pixels.dtype} ".encode())
            digest.update(np.ascontiguousarray(pixels).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class GenerationRequest:
    """One image asked for by a user."""

    prompt: str
    sampling: SamplingParams = field(default_factory=SamplingParams)
    system_prompt: str | None = None
    """Text put before the prompt; None means none."""

    cot_text: str | None = None
    """Chain-of-thought or recaption text put after `Assistant: ` (instruct template only)."""

    template: Template | None = None
    """None takes the checkpoint's `sequence_template`."""

    images: tuple[ReferenceImage, ...] = ()
    """Reference images, at most 3, in the order in which the prompt speaks of them."""

    reference_seed: int | None = None
    """Seed that the latents of `images` are drawn with, 0 to 2**63 - 1; None takes the request's
    own. Requests of different seeds that name one have the same references, to the bit."""

    parent_id: str | None = None
    """What the requests for n images of one prompt have in common; None for a lone request."""

    request_id: str | None = None
    """None lets the engine make one."""

    trace_path: str | None = None
    """Where the worker writes every step's tensors (safetensors); None writes nothing."""

    num_partial_images: int = 0
    """Previews at evenly spaced steps, 0 to 3; never one of the last step."""

    timeout_s: float | None = None
    """Seconds from submission, time in the queue included; None means no limit."""


@dataclass(frozen=True)
class ResolvedSampling:
    """SamplingParams with every value known: what really runs."""

    height: int
    width: int
    num_inference_steps: int
    guidance_scale: float
    flow_shift: float
    seed: int
    reference_seed: int | None = None
    """Seed that the latents of reference images are drawn with; None where there are none."""


@dataclass(frozen=True)
class RequestMetrics:
    """Where the time and the memory of one request went."""

    queue_time_s: float
    reference_time_s: float
    """Encoding of the reference images; in no step time."""

    first_step_time_s: float
    step_times_s: tuple[float, ...]
    """Every denoising step in order, the first included."""

    preview_time_s: float
    """Decoding of the previews; in no step time."""

    decode_time_s: float
    total_time_s: float
    """From submission to the decoded image."""

    prefix_tokens: int
    """Tokens of one row that only the first step computes."""

    reference_tokens: int
    """Those of them that are reference images."""

    target_tokens: int
    """Tokens of one row that every step computes anew."""

    cached_tokens: int
    """Leading tokens of each row that an earlier request had computed."""

    shared_tokens: int
    """Leading tokens that are the same in all rows of a rank: where they fill a page that was not
    cached, they are computed once."""

    num_rows: int
    num_pages: int
    """KV pages held; 0 in dense_legacy."""

    kv_bytes: int
    """Bytes of keys and values reserved for this request, all layers, one rank."""

    tokens_written: tuple[int, ...]
    """Key/value tokens written in each step, all rows together."""

    peak_memory_bytes: int
    """Most memory the worker's device or, on the CPU, its process held so far."""


@dataclass(frozen=True)
class RecordedRequest:
    """A request as it ran: nothing is left to a default."""

    prompt: str
    system_prompt: str | None
    cot_text: str | None
    template: Template
    sampling: ResolvedSampling
    images: tuple[RecordedImage, ...] = ()
    """The reference images as they were decoded, in order."""


@dataclass(frozen=True)
class RecordedModel:
    """Which weights drew a picture."""

    version: str | None
    """`model_version` of config.json; None where it has none."""

    fingerprint: str
    """Of configuration, tokenizer and a sample of the weights, see modelspec.fingerprint."""


@dataclass(frozen=True)
class RecordedDeployment:
    """How a picture was computed: what was configured and what that resolved to."""

    kv_mode: str
    backend: str
    kernel: str
    kernel_version: str
    page_size: int | None
    """Token slots per page; None in dense_legacy."""

    dtype: str
    settings: Mapping[str, str | int | float | bool | None]
    """Every setting of the resolved deployment, by its dotted name."""

    config_hash: str
    """sha256 over `settings`."""


@dataclass(frozen=True)
class RecordedPlatform:
    """What computed a picture; it names no host, user or folder."""

    device: str
    """Kind of device, e.g. cpu."""

    device_name: str
    """Model of the device."""

    machine: str
    """Instruction set of the host, e.g. x86_64."""

    cpu_capability: str
    """Vector instructions that torch's CPU kernels use, e.g. AVX2."""

    num_threads: int
    """Threads of one CPU operation; sums are split among them."""

    versions: Mapping[str, str]
    """Version of each package that takes part in the computation."""


@dataclass(frozen=True)
class ReplayRecord:
    """Everything that can change a picture, so that it can be made again and compared."""

    request: RecordedRequest
    model: RecordedModel
    deployment: RecordedDeployment
    platform: RecordedPlatform
    image: RecordedImage


@dataclass(frozen=True)
class GenerationResult:
    """One image and the facts of how it was made."""

    request_id: str
    image: npt.NDArray[np.uint8]
    """uint8 [height, width, 3], RGB."""

    sampling: ResolvedSampling
    template: Template
    metrics: RequestMetrics
    replay: ReplayRecord
    """What it takes to make this image again."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepEvent:
    """Progress of a running request after one denoising step."""

    request_id: str
    step: int
    """1 for the first."""

    num_steps: int
    step_time_s: float
    tokens_written: int
    """Key/value tokens written in this step, all rows together."""

    preview: npt.NDArray[np.uint8] | None = None
    """uint8 [height, width, 3], RGB: what the image would be if this step's direction held to the
    end. None for a step without a preview."""


OnStep = Callable[[StepEvent], None]
"""Is told of each step, on the thread that runs the request."""
