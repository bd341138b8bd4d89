"""As planted_slowdown, on requests of the engine: for a machine with nothing else to do."""

from __future__ import annotations

from dataclasses import replace

from bench.harness.engine_target import EngineTarget
from bench.harness.load import LOADS, read_load
from bench.planted import find_planted
from bench.records import Record
from bench.registry import Context
from kit.api import ImageEngine, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

PAIRS = 24
"""Of a comparison, unless more repeats are asked for."""


def run(context: Context) -> Record:
    """Make 20 comparisons with a planted slowdown and 20 without, of the smallest request."""
    load = replace(
        read_load(LOADS / "vase.yaml"),
        sizes=("384x128",),
        steps=(1,),
        guidance=(1.0,),
        requests=max(context.repeats, PAIRS),
    )
    with ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT)) as engine:
        return find_planted(context, load, EngineTarget(engine))
