"""What a user asks for, what it resolves to, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Template = Literal["pretrain", "instruct"]


@dataclass(frozen=True)
class SamplingParams:
    """How to sample; None takes the deployment's default, then the checkpoint's."""

    height: int | None = None
    """Image height in pixels; with `width` it must be one of the checkpoint's buckets."""

    width: int | None = None
    """Image width in pixels."""

    num_inference_steps: int | None = None
    """Denoising steps, 1 to 1000."""

    guidance_scale: float | None = None
    """Classifier-free guidance, 0 to 100; at most 1 runs one row."""

    seed: int | None = None
    """Seed of the initial noise, 0 to 2**63 - 1; None draws one, which the result names."""

    flow_shift: float | None = None
    """Shift of the flow-matching schedule, above 0."""


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

    request_id: str | None = None
    """None lets the engine make one."""

    trace_path: str | None = None
    """Where the worker writes every step's tensors (safetensors); None writes nothing."""


@dataclass(frozen=True)
class ResolvedSampling:
    """SamplingParams with every value known: what really runs."""

    height: int
    width: int
    num_inference_steps: int
    guidance_scale: float
    flow_shift: float
    seed: int


@dataclass(frozen=True)
class RequestMetrics:
    """Where the time and the memory of one request went."""

    queue_time_s: float
    first_step_time_s: float
    step_times_s: tuple[float, ...]
    """Every denoising step in order, the first included."""

    decode_time_s: float
    total_time_s: float
    """From submission to the decoded image."""

    num_rows: int
    num_pages: int
    """KV pages held; 0 in dense_legacy."""

    kv_bytes: int
    """Bytes of keys and values reserved for this request, all layers, one rank."""

    tokens_written: tuple[int, ...]
    """Key/value tokens written in each step, all rows together."""


@dataclass(frozen=True)
class GenerationResult:
    """One image and the facts of how it was made."""

    request_id: str
    image: npt.NDArray[np.uint8]
    """uint8 [height, width, 3], RGB."""

    sampling: ResolvedSampling
    template: Template
    metrics: RequestMetrics
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
