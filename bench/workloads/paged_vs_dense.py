"""An image through paged_scheduler and dense_legacy: equal latents, then times in turn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bench.harness.compare import compare
from bench.harness.load import LOADS, read_load
from bench.harness.targets import ENGINE, open_target
from bench.records import Record
from bench.registry import Context

LOAD = LOADS / "vase.yaml"
DENSE, PAGED = "hunyuan_image3_dit.yaml", "hunyuan_image3_paged.yaml"


def run(context: Context) -> Record:
    """Compare the packaged deployments on the shipped checkpoint, `context.repeats` pairs."""
    return compare(
        context,
        replace(read_load(LOAD), requests=context.repeats),
        partial(open_target, ENGINE, DENSE, None),
        partial(open_target, ENGINE, PAGED, None),
        {"baseline.deployment": DENSE, "candidate.deployment": PAGED},
    )
