"""An image through paged_scheduler and dense_legacy: equal latents, then times in turn."""

from __future__ import annotations

from dataclasses import replace

from bench.harness.compare import compare
from bench.harness.engine_target import EngineTarget
from bench.harness.load import LOADS, read_load
from bench.records import Record
from bench.registry import Context
from kit.api import ImageEngine, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

LOAD = LOADS / "vase.yaml"

_BACKEND = {"diffusion_attention_backend": "FLASH_ATTN"}
_PAGED = {
    **_BACKEND,
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
}


def run(context: Context) -> Record:
    """Compare the modes on the shipped checkpoint, both with one backend's arithmetic."""
    configs = [
        load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": stage})
        for stage in (_BACKEND, _PAGED)
    ]
    load = replace(read_load(LOAD), requests=context.repeats)
    with (
        ImageEngine(DEFAULT_CHECKPOINT, configs[0]) as dense,
        ImageEngine(DEFAULT_CHECKPOINT, configs[1]) as paged,
    ):
        return compare(context, load, EngineTarget(dense), EngineTarget(paged))
