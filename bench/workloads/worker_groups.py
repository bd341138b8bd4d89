"""Ranks that share a request on this CPU against one rank: latents of every step, both KV modes."""

from __future__ import annotations

import tempfile
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
MODES = ("paged_scheduler", "dense_legacy")
# 257 and 129 tokens of the target: no number of ranks divides them.
REQUESTS = (
    GenerationRequest("a red vase on a table", SamplingParams(num_inference_steps=4, seed=1)),
    GenerationRequest("two boats", SamplingParams(num_inference_steps=4, seed=2, guidance_scale=1)),
)


def run(context: Context) -> Record:
    """Draw with each topology that claims this record, `context.repeats` times."""
    topologies = tuple(one.topology for one in VALIDATED if one.record == context.name)
    latents: dict[tuple[str, str, int], list[Tensor]] = {}
    seconds: dict[str, list[float]] = {}
    for topology in (ONE_RANK, *topologies):
        for mode in MODES:
            seen, times = _draw(topology, mode, context.repeats)
            latents |= {(str(topology), mode, at): one for at, one in enumerate(seen)}
            if mode == MODES[0]:
                seconds[str(topology)] = times
    errors = {
        str(topology): max(
            _distance(latents[str(topology), mode, at], latents[str(ONE_RANK), mode, at])
            for mode in MODES
            for at in range(len(REQUESTS))
        )
        for topology in topologies
    }
    worst = max(errors.values())
    alone = seconds.pop(str(ONE_RANK))
    rows: tuple[dict[str, float], ...] = tuple(
        {f"{name}_s": times[at] for name, times in seconds.items()} for at in range(context.repeats)
    )
    return context.record(
        parameters={
            "topologies": [str(topology) for topology in topologies],
            "modes": list(MODES),
            "exchange": "gloo",
            "steps": 4,
        },
        equality=EqualityCheck(
            compared="latents of every step against one rank's, largest absolute difference",
            limit=LIMIT,
            seen=worst,
            equal=worst <= LIMIT,
        ),
        baseline=Measurement("one rank", tuple({"alone_s": time} for time in alone)),
        candidate=Measurement("ranks that share a request", rows),
        ratios={
            f"{name}_over_alone": (f"candidate.{name}_s", "baseline.alone_s") for name in seconds
        },
        findings={f"error_{name}": error for name, error in errors.items()},
    )


def _draw(topology: Topology, mode: str, repeats: int) -> tuple[list[list[Tensor]], list[float]]:
    """Return each request's latents of every step, and seconds of the first one's denoising."""
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
    latents = []
    with tempfile.TemporaryDirectory() as folder, ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
        for at, request in enumerate(REQUESTS):
            path = Path(folder, f"{at}.safetensors")
            engine.generate(replace(request, trace_path=str(path)))
            tensors = load_file(path)
            names = sorted(name for name in tensors if name.endswith(".latents_out"))
            latents.append([tensors[name] for name in names])
        results = [engine.generate(REQUESTS[0]) for _ in range(repeats)]
    return latents, [sum(result.metrics.step_times_s) for result in results]


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    assert len(first) == len(second) == 4, "every step was traced"
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))
