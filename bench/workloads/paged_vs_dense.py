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
DENSE, PAGED = "hunyuan_image3_dit.yaml", "hunyuan_image3_paged.yaml"


def run(context: Context) -> Record:
    """Compare the packaged deployments on the shipped checkpoint, `context.repeats` pairs."""
    load = replace(read_load(LOAD), requests=context.repeats)
    dense, paged = (load_config(DEFAULT_CHECKPOINT, name) for name in (DENSE, PAGED))
    with (
        ImageEngine(DEFAULT_CHECKPOINT, dense) as baseline,
        ImageEngine(DEFAULT_CHECKPOINT, paged) as candidate,
    ):
        return compare(
            context,
            load,
            EngineTarget(baseline),
            EngineTarget(candidate),
            {"baseline.deployment": DENSE, "candidate.deployment": PAGED},
        )
