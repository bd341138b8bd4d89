"""Everything that crosses the boundary between the engine and its workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.kv.allocation import KVAllocation
from kit.request import ResolvedSampling
from kit.tokenizer.layout import Rows


@dataclass(frozen=True)
class RunRequest:
    """One request, complete: a worker needs nothing else to run it."""

    request_id: str
    rows: Rows
    sampling: ResolvedSampling
    allocation: KVAllocation | None
    """None in dense_legacy, never None in paged_scheduler."""

    trace_path: str | None


@dataclass(frozen=True)
class RunResult:
    """What a worker returns for a finished request."""

    request_id: str
    image: npt.NDArray[np.uint8]
    """uint8 [height, width, 3], RGB."""

    step_times_s: tuple[float, ...]
    tokens_written: tuple[int, ...]
    decode_time_s: float
    kv_bytes: int
