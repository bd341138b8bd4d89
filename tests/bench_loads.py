"""A small load, and targets that do real work without a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.harness.jobs import Job
from bench.harness.load import Closed, Load
from bench.harness.target import Answer, Evidence, OpenTarget, Target, TargetInfo, pixels_sha256

SMALL = Load(
    about="For tests.",
    prompts=("a red vase",),
    sizes=("16x16",),
    steps=(2,),
    guidance=(5.0,),
    arrivals=Closed("closed", concurrency=1),
    first_seed=7,
    requests=3,
)


def small_load(**changes: Any) -> Load:
    """The small load with changes."""
    content = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    return Load(**{**content, **changes})


def opened(target: Target) -> OpenTarget:
    """Opens what is open, and leaves it so."""
    return lambda: nullcontext(target)


@dataclass
class PainterTarget:
    """Paints noise from the seed after some real work; no model, a millisecond a picture."""

    work: Callable[[], object] = lambda: None
    latents: Callable[[np.ndarray[Any, Any]], object] = lambda _: None
    """May change the latents that it shows."""

    asked: list[Job] = field(default_factory=list)

    def describe(self) -> TargetInfo:
        return TargetInfo("painter", {}, {"checkpoint": "none"})

    def ask(self, job: Job) -> Answer:
        self.asked.append(job)
        self.work()
        pixels = _pixels(job)
        return Answer("ok", time.perf_counter(), pixels_sha256([pixels]), {"first_step_s": 0.5})

    def evidence(self, job: Job) -> Evidence:
        latents = np.random.default_rng(job.seed).standard_normal((4, 4)).astype(np.float32)
        self.latents(latents)
        return {"pixels": _pixels(job), "latents of step 1": latents}

    def facts(self) -> Mapping[str, float]:
        return {"pool_pages": 100.0, "page_bytes": 4096.0, "pages_used_peak": 2.0}


def _pixels(job: Job) -> np.ndarray[Any, np.dtype[np.uint8]]:
    shape = (job.height, job.width, 3)
    return np.random.default_rng(job.seed).integers(0, 256, shape, dtype=np.uint8)
