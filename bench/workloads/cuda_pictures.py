"""Pictures of the shipped checkpoint on a card in bfloat16 against the CPU's in float32."""

from __future__ import annotations

import math
import statistics

import numpy as np
import numpy.typing as npt

from bench.cuda_timing import the_card
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.evaluation import FAMILIES, evaluation_captions
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

PER_FAMILY, NUM_PROMPTS, NUM_STEPS, SEED = 6, 24, 20, 1
PSNR_LIMIT_DB = 35.0
_PAGED = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}


def run(context: Context) -> Record:
    """Draw 24 held-out captions on both, `context.repeats` times on the card."""
    the_card()
    texts = [c.text for f in FAMILIES for c in evaluation_captions(f, PER_FAMILY, seed=SEED)]
    texts = texts[:: max(1, len(texts) // NUM_PROMPTS)][:NUM_PROMPTS]
    configs = {
        "baseline": load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": {"devices": "cpu"}}),
        "candidate": load_config(
            DEFAULT_CHECKPOINT,
            stage_overrides={"0": {"devices": "0", "enforce_eager": False} | _PAGED},
        ),
    }
    images: dict[str, list[npt.NDArray[np.uint8]]] = {}
    rows: dict[str, list[dict[str, float]]] = {"baseline": [], "candidate": []}
    for side, config in configs.items():
        with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
            engine.generate(_request(texts[0], SEED))
            results = [engine.generate(_request(t, SEED + i)) for i, t in enumerate(texts)]
        images[side] = [result.image for result in results]
        rows[side] = [{"total_s": result.metrics.total_time_s} for result in results]
    psnr = [psnr(a, b) for a, b in zip(images["candidate"], images["baseline"], strict=True)]
    for row, value in zip(rows["candidate"], psnr, strict=True):
        row["psnr_db"] = value
    median = statistics.median(psnr)
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
        baseline=Measurement("CPU, float32, dense_legacy", tuple(rows["baseline"])),
        candidate=Measurement("card, bfloat16, paged_scheduler, graphs", tuple(rows["candidate"])),
        paired=True,
        ratios=pair_ratios(("total_s",)),
        findings={"median_psnr_db": median, "lowest_psnr_db": min(psnr)},
    )


def _request(text: str, seed: int) -> GenerationRequest:
    sampling = SamplingParams(
        height=256, width=256, num_inference_steps=NUM_STEPS, guidance_scale=5.0, seed=seed
    )
    return GenerationRequest(text, sampling)


def psnr(seen: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8]) -> float:
    """Return dB against the range of a byte; 78 for equal pictures."""
    error = float(((seen.astype(np.float64) - wanted.astype(np.float64)) ** 2).mean())
    return 10 * math.log10(255**2 / max(error, 1e-3))
