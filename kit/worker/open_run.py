"""A request on a rank between its first step and its image."""

from __future__ import annotations

from dataclasses import dataclass, field

from kit.attention.base import RequestKV
from kit.messages import RunRequest
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.trace import Trace


@dataclass
class OpenRun:
    """What a rank keeps of a request while others may have their turn."""

    run: RunRequest
    kv: RequestKV
    loop: DenoiseLoop
    trace: Trace | None
    previewed: frozenset[int]
    """Steps that a preview follows."""

    reference_time_s: float
    """Encoding of the reference images."""

    step_times_s: list[float] = field(default_factory=list)
    tokens_written: list[int] = field(default_factory=list)
    preview_time_s: float = 0.0
