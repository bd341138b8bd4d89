"""Pictures of the shipped checkpoint on a card in bfloat16 against the CPU's in float32."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bench.cuda_timing import the_card
from bench.pixels import psnr
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.api import GenerationRequest, GenerationResult, ImageEngine, SamplingParams, load_config
from kit.checkpoint.evaluation import FAMILIES, evaluation_captions
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

PER_FAMILY, NUM_PROMPTS, NUM_STEPS, SEED = 6, 24, 20, 1
PSNR_LIMIT_DB = 35.0
PAGED: dict[str, JsonValue] = {
    "devices": "0",
    "enforce_eager": False,
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
}


def run(context: Context) -> Record:
    """Draw 24 held-out captions on both, in `context.repeats` rounds of other seeds."""
    the_card()
    texts = [c.text for f in FAMILIES for c in evaluation_captions(f, PER_FAMILY, seed=SEED)]
    texts = texts[:: max(1, len(texts) // NUM_PROMPTS)][:NUM_PROMPTS]
    return measure(context, texts, PAGED)


def measure(context: Context, texts: Sequence[str], stage: Mapping[str, JsonValue]) -> Record:
    """Draw captions on the CPU, and once more with a stage's values; at 20 steps, guided."""
    requests = [_request(text, SEED + at) for at, text in enumerate(context.repeats * [*texts])]
    plain, other = (_draw(requests, values) for values in ({"devices": "cpu"}, stage))
    values = [psnr(b.image, a.image) for a, b in zip(plain, other, strict=True)]
    median = statistics.median(values)
    return context.record(
        parameters={
            "checkpoint": DEFAULT_CHECKPOINT.name,
            "prompts": list(texts),
            "num_inference_steps": NUM_STEPS,
            "first_seed": SEED,
            "psnr_limit_db": PSNR_LIMIT_DB,
        },
        equality=EqualityCheck.of(
            compared="dB by which the median PSNR of the pictures misses its limit",
            limit=0,
            seen=max(0.0, PSNR_LIMIT_DB - median),
        ),
        baseline=Measurement(
            "CPU, float32, dense_legacy", tuple({"total_s": a.metrics.total_time_s} for a in plain)
        ),
        candidate=Measurement(
            "card, bfloat16, paged_scheduler, graphs",
            tuple(
                {"total_s": b.metrics.total_time_s, "psnr_db": value}
                for b, value in zip(other, values, strict=True)
            ),
        ),
        paired=True,
        ratios=pair_ratios(("total_s",)),
        findings={"median_psnr_db": median, "lowest_psnr_db": min(values)},
    )


def _draw(
    requests: Sequence[GenerationRequest], stage: Mapping[str, JsonValue]
) -> list[GenerationResult]:
    config = load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": stage})
    with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
        engine.generate(requests[0])
        return [engine.generate(request) for request in requests]


def _request(text: str, seed: int) -> GenerationRequest:
    sampling = SamplingParams(
        height=256, width=256, num_inference_steps=NUM_STEPS, guidance_scale=5.0, seed=seed
    )
    return GenerationRequest(text, sampling)
