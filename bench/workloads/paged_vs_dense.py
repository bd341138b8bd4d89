"""An image through paged_scheduler and dense_legacy: equal latents, then interleaved times."""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import load_file
from torch import Tensor

from bench.records import ConfigValue, EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.config.deploy import DeployConfig, leaf_values
from kit.modelspec.files import CheckpointFiles

PROMPT = "A red ceramic vase on a wooden table"
NUM_STEPS = 8
SEED = 1234
WARMUP = 1

_BACKEND = {"diffusion_attention_backend": "FLASH_ATTN"}
_PAGED = {
    **_BACKEND,
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
}


def run(context: Context) -> Record:
    """Compare the modes on the shipped checkpoint, `context.repeats` images each, A B A B."""
    configs = {
        "baseline": load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": _BACKEND}),
        "candidate": load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": _PAGED}),
    }
    with (
        ImageEngine(DEFAULT_CHECKPOINT, configs["baseline"]) as dense,
        ImageEngine(DEFAULT_CHECKPOINT, configs["candidate"]) as paged,
    ):
        difference = _latent_difference(dense, paged)
        engines = {"baseline": dense, "candidate": paged}
        for engine in engines.values():
            for _ in range(WARMUP):
                engine.generate(_request())
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
        for _ in range(context.repeats):
            for name, engine in engines.items():
                rows[name].append(_measure(engine))
    return context.record(
        parameters={
            "checkpoint": DEFAULT_CHECKPOINT.name,
            "checkpoint_sha256": CheckpointFiles.open(DEFAULT_CHECKPOINT).fingerprint(
                contents=True
            ),
            "prompt": PROMPT,
            "num_inference_steps": NUM_STEPS,
            "seed": SEED,
            "warmup_images": WARMUP,
            "order": "baseline, candidate, alternating",
        },
        equality=EqualityCheck(
            compared="latents of every step, largest absolute difference",
            limit=0,
            seen=difference,
            equal=difference == 0,
        ),
        baseline=Measurement("dense_legacy, FLASH_ATTN", tuple(rows["baseline"])),
        candidate=Measurement("paged_scheduler, FLASH_ATTN", tuple(rows["candidate"])),
        ratios={
            column.removesuffix("_s"): (f"candidate.{column}", f"baseline.{column}")
            for column in ("first_step_s", "later_step_s", "total_s")
        },
        config=_config(configs),
    )


def _request(trace_path: Path | None = None) -> GenerationRequest:
    return GenerationRequest(
        PROMPT,
        SamplingParams(num_inference_steps=NUM_STEPS, seed=SEED),
        trace_path=None if trace_path is None else str(trace_path),
    )


def _latent_difference(dense: ImageEngine, paged: ImageEngine) -> float:
    """Largest absolute difference of the latents over all steps; NaN counts as the largest."""
    with tempfile.TemporaryDirectory() as folder:
        traces: list[dict[str, Tensor]] = []
        for engine in (dense, paged):
            path = Path(folder) / f"{len(traces)}.safetensors"
            engine.generate(_request(path))
            traces.append(load_file(path))
    names = [f"step{i}.latents_out" for i in range(1, NUM_STEPS + 1)]
    differences = [float((traces[0][n] - traces[1][n]).abs().max()) for n in names]
    finite = all(math.isfinite(difference) for difference in differences)
    return max(differences) if finite else sys.float_info.max


def _measure(engine: ImageEngine) -> dict[str, float]:
    metrics = engine.generate(_request()).metrics
    return {
        "first_step_s": metrics.first_step_time_s,
        "later_step_s": statistics.median(metrics.step_times_s[1:]),
        "decode_s": metrics.decode_time_s,
        "total_s": metrics.total_time_s,
        "kv_bytes": metrics.kv_bytes,
    }


def _config(configs: Mapping[str, DeployConfig]) -> dict[str, ConfigValue]:
    return {
        f"{side}.{name}": ConfigValue(_json(value), config.provenance[name])
        for side, config in configs.items()
        for name, value in leaf_values(config)
    }


def _json(value: object) -> JsonValue:
    """Leaves of a deployment are plain values already; this says so to the type checker."""
    assert value is None or isinstance(value, (str, int, float, bool)), value
    return value
