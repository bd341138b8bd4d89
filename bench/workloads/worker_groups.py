"""Ranks that share a request on this CPU against one rank: latents of every step, both KV modes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.parallel.topology import ONE_RANK, Topology
from kit.parallel.validated import VALIDATED

LIMIT = 1e-4
NUM_STEPS = 4
MODES = ("paged_scheduler", "dense_legacy")
# 257 tokens of the target, and one row or two: no number of ranks divides all of them.
REQUESTS = tuple(
    GenerationRequest(
        prompt,
        SamplingParams(num_inference_steps=NUM_STEPS, seed=at, guidance_scale=guidance),
    )
    for at, (prompt, guidance) in enumerate((("a red vase on a table", 5.0), ("two boats", 1.0)))
)

Latents = Mapping[tuple[str, int], list[Tensor]]
"""By KV mode and request: those after each step."""


def run(context: Context) -> Record:
    """Draw with each topology that claims this record."""
    topologies = tuple(one.topology for one in VALIDATED if one.record == context.name)
    alone = _draw(ONE_RANK)
    seen = {str(topology): _draw(topology) for topology in topologies}
    rows: tuple[dict[str, float], ...] = tuple(
        {name: _distance(latents[case], alone[case]) for name, latents in seen.items()}
        for case in alone
    )
    worst = max(max(row.values()) for row in rows)
    return context.record(
        parameters={
            "topologies": list(seen),
            "modes": list(MODES),
            "guidance_scales": [request.sampling.guidance_scale for request in REQUESTS],
            "steps": NUM_STEPS,
            "exchange": "gloo",
        },
        equality=EqualityCheck.of(
            compared="latents of every step against one rank's, largest absolute difference",
            limit=LIMIT,
            seen=worst,
        ),
        baseline=Measurement("what still counts as equal", ({"limit": LIMIT},) * len(rows)),
        candidate=Measurement("largest difference, a row for each mode and request", rows),
        ratios={f"{name}_over_limit": (f"candidate.{name}", "baseline.limit") for name in seen},
    )


def _draw(topology: Topology) -> Latents:
    latents = {}
    for mode in MODES:
        stage: dict[str, Any] = {
            "diffusion_kv_mode": mode,
            "parallel_config": {
                "tensor_parallel_size": topology.tensor,
                "ulysses_degree": topology.ulysses,
                "cfg_parallel_size": topology.cfg,
            },
        }
        if mode == "paged_scheduler":
            stage["diffusion_kv_max_rows_per_request"] = 2
        config = load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": stage})
        with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
            for at, request in enumerate(REQUESTS):
                latents[mode, at] = _latents(engine, request)
    return latents


def _latents(engine: ImageEngine, request: GenerationRequest) -> list[Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.safetensors")
        engine.generate(replace(request, trace_path=str(path)))
        tensors = load_file(path)
    names = sorted(name for name in tensors if name.endswith(".latents_out"))
    assert len(names) == NUM_STEPS, "every step was traced"
    return [tensors[name] for name in names]


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))
