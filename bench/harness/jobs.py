"""The requests of a load, each with the moment at which it is due."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product

import numpy as np

from bench.harness.load import Closed, Load, Poisson


@dataclass(frozen=True)
class Job:
    """One request."""

    prompt: str
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    """Of the first picture; the next one's is one higher."""

    n: int
    timeout_s: float

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


def job(load: Load, index: int) -> Job:
    """Return request `index` of a load."""
    kinds = list(product(load.sizes, load.steps, load.guidance))
    size, steps, guidance = kinds[index % len(kinds)]
    width, _, height = size.partition("x")
    return Job(
        prompt=load.prompts[index // len(kinds) % len(load.prompts)],
        width=int(width),
        height=int(height),
        steps=steps,
        guidance=guidance,
        seed=load.first_seed + index,
        n=load.n,
        timeout_s=load.timeout_s,
    )


def kinds_of(load: Load) -> list[Job]:
    """Return the first request of each size, steps and guidance."""
    return [job(load, i) for i in range(len(load.sizes) * len(load.steps) * len(load.guidance))]


def due_times(load: Load) -> Iterator[float | None]:
    """Yield when each request is due, in seconds from the start; None: when a client is free."""
    if isinstance(load.arrivals, Closed):
        for _ in range(load.requests) if load.requests is not None else count():
            yield None
    elif isinstance(load.arrivals, Poisson):
        yield from _poisson(load, load.arrivals)
    else:
        yield from load.arrivals.offsets_s


def _poisson(load: Load, arrivals: Poisson) -> Iterator[float]:
    # This generator's stream stays what it is in every numpy: the same seed, the same moments.
    draw = np.random.RandomState(arrivals.seed)
    at = 0.0
    for _ in range(load.requests) if load.requests is not None else count():
        # The gaps of a Poisson process are exponential; 1 - u is never zero.
        at += -math.log(1 - draw.random_sample()) / arrivals.rate_per_s
        if load.duration_s is not None and at > load.duration_s:
            return
        yield at
