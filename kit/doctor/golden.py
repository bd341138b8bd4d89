"""Run a recorded case of the official implementation here and measure how far each step is off."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from kit.engine.engine import ImageEngine
from kit.modelspec.deployment import load_config
from kit.request import GenerationRequest, SamplingParams

SHIPPED_CASE = Path(__file__).parent / "golden" / "case_t2i_pretrain_square.json"

FLOAT32_LIMIT = 1e-4
"""Largest absolute difference that float32 arithmetic explains; 6e-6 is usual."""

PIXEL_LIMIT = 1


@dataclass(frozen=True)
class StepError:
    """Largest absolute differences of one denoising step."""

    step: int
    prediction: float
    latents: float


@dataclass(frozen=True)
class GoldenReport:
    """How one run compares with the recorded case."""

    case: str
    ids_equal: bool
    steps: tuple[StepError, ...]
    max_pixel_difference: int
    """In 8-bit levels."""

    @property
    def passed(self) -> bool:
        # One by one: max() of a list that holds NaN may be any of its numbers.
        errors = [error for step in self.steps for error in (step.prediction, step.latents)]
        close = all(error <= FLOAT32_LIMIT for error in errors)
        return self.ids_equal and close and self.max_pixel_difference <= PIXEL_LIMIT


def case_request(inputs: dict[str, Any], *, trace_path: Path | None = None) -> GenerationRequest:
    """Build the request of a recorded case with one prompt."""
    height, width = inputs["image_size_hw"]
    return GenerationRequest(
        prompt=inputs["prompt"],
        sampling=SamplingParams(
            height=height,
            width=width,
            num_inference_steps=inputs["steps"],
            guidance_scale=inputs["guidance_scale"],
            seed=inputs["seed"],
            flow_shift=inputs["flow_shift"],
        ),
        system_prompt=inputs["system_prompt"],
        cot_text=inputs["cot_text"],
        template=inputs["sequence_template"],
        trace_path=None if trace_path is None else str(trace_path),
    )


def run_golden(
    checkpoint: Path,
    kv_mode: str,
    case_path: Path = SHIPPED_CASE,
    *,
    stage: Mapping[str, object] | None = None,
) -> GoldenReport:
    """Run the case on `checkpoint` in float32; errors as in ImageEngine.

    stage: further settings of the stage, such as its devices.
    """
    inputs = json.loads(case_path.read_text())
    settings: dict[str, object] = {"diffusion_kv_mode": kv_mode, **(stage or {})}
    if kv_mode == "paged_scheduler":
        settings["diffusion_kv_max_rows_per_request"] = 2
    config = load_config(checkpoint, stage_overrides={"0": settings}, flags={"dtype": "float32"})
    with tempfile.TemporaryDirectory() as folder:
        trace_path = Path(folder) / "trace.safetensors"
        with ImageEngine(checkpoint, config) as engine:
            engine.generate(case_request(inputs, trace_path=trace_path))
        seen = load_file(trace_path)
    return compare(inputs["name"], seen, load_file(case_path.with_suffix(".safetensors")))


def compare(name: str, seen: dict[str, Tensor], wanted: dict[str, Tensor]) -> GoldenReport:
    """Compare a trace with recorded tensors of the same names."""
    num_steps = wanted["timesteps"].numel()

    def difference(key: str) -> float:
        return float((seen[key] - wanted[key]).abs().max())

    steps = tuple(
        StepError(i, difference(f"step{i}.pred"), difference(f"step{i}.latents_out"))
        for i in range(1, num_steps + 1)
    )
    pixels = (seen["image_u8"].int() - wanted["image_u8"].int()).abs().max()
    ids_equal = torch.equal(seen["input_ids"], wanted["input_ids"])
    return GoldenReport(name, ids_equal, steps, int(pixels))
