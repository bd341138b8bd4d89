"""What is measured: something that answers requests for pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from bench.harness.jobs import Job
from bench.records import ConfigValue

Outcome = Literal[
    "ok",  # decoded pictures, as many and as large as asked for
    "no_picture",  # an answer without pictures that can be decoded
    "wrong_size",
    "refused",  # the request itself
    "overloaded",
    "timed_out",
    "failed",
]

Evidence = Mapping[str, npt.NDArray[np.generic]]
"""What two targets must agree in to the last bit, by name."""

COSTS = ("latency_s", "first_step_s", "later_step_s", "decode_s")
"""Columns of a row that are compared: the first comes from the client's clock and is always there,
the others where both targets tell them."""


@dataclass(frozen=True)
class Answer:
    """How a request ended."""

    outcome: Outcome
    done: float
    """When it did, a reading of time.perf_counter, before anything was decoded."""

    sha256: str | None = None
    """Over the uint8 RGB pixels of its pictures, one after the other."""

    columns: Mapping[str, float] = field(default_factory=dict)
    """What the target tells of it, by the names of a row."""

    message: str | None = None
    """Why it failed."""


@dataclass(frozen=True)
class TargetInfo:
    """What a target is."""

    label: str
    config: Mapping[str, ConfigValue]
    """Its resolved deployment; empty where it does not tell."""

    parameters: Mapping[str, JsonValue]
    """Which weights and software, as far as it tells."""


class Target(Protocol):
    """One deployment. Everything may be called from any thread."""

    def describe(self) -> TargetInfo:
        """Say what it is, once it can answer."""
        ...

    def ask(self, job: Job) -> Answer:
        """Ask for pictures and wait; what goes wrong is in the answer."""
        ...

    def evidence(self, job: Job) -> Evidence:
        """Make a request once more for the sake of comparing; raises KitError when it fails."""
        ...

    def facts(self) -> Mapping[str, float]:
        """Tell what it holds at this moment, such as memory and pages; what it can tell."""
        ...


OpenTarget = Callable[[], AbstractContextManager[Target]]
"""Opens a target anew: an engine loads its weights, a server is asked."""


def pixels_sha256(pictures: Sequence[npt.NDArray[np.uint8]]) -> str:
    """Return the hash of uint8 [height, width, 3] pictures, one after the other."""
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(picture.tobytes())
    return digest.hexdigest()
