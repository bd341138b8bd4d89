"""Everything that crosses the boundary between the engine and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kit.config.deploy import KVMode
from kit.kv.allocation import KVAllocation
from kit.request import ReferenceImage, ResolvedSampling
from kit.tokenizer.layout import Rows


@dataclass(frozen=True)
class WorkerConfig:
    """Everything a worker needs to load a model and own its keys and values."""

    model_path: str
    device: str
    dtype: Literal["float32", "bfloat16"]
    vae_dtype: Literal["float32", "float16"]
    kv_mode: KVMode
    attention_backend: str
    page_size: int | None
    """Token slots per page; None in dense_legacy."""

    num_pages: int
    """Pages of the pool; 0 in dense_legacy."""

    use_graphs: bool = False
    """Capture later steps in graphs."""

    stream_layers: bool = False
    """Decoder layers wait in host memory; two places on the card take turns."""

    vae_tiling: bool = False
    """Images larger than a tile are decoded in overlapping tiles."""

    vae_waits: bool = False
    """The VAE decoder, and what reads references, wait in host memory until they run."""

    takes_references: bool = False
    """Load what reads reference images."""


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker resolved and loaded."""

    device: str
    dtype: str
    backend: str
    kernel: str
    kernel_version: str
    page_size: int | None
    pool_bytes: int
    """Bytes that the page pool really takes; 0 in dense_legacy."""

    weight_bytes: int
    """Bytes of the parameters on the device, all modules."""

    load_time_s: float
    host_weight_bytes: int = 0
    """Bytes of the parameters that wait in host memory."""

    expert_layer: str = "loop"
    """grouped: grouped matrix products that never wait for the host; loop: one expert at a time."""


@dataclass(frozen=True)
class RunRequest:
    """One request, complete: a worker needs nothing else to run it."""

    request_id: str
    rows: Rows
    sampling: ResolvedSampling
    allocation: KVAllocation | None
    """None in dense_legacy, never None in paged_scheduler."""

    trace_path: str | None
    num_partial_images: int = 0
    references: tuple[ReferenceImage, ...] = ()
    """One for each reference span of the layout."""


@dataclass(frozen=True)
class RunResult:
    """What a worker returns for a finished request."""

    request_id: str
    image: npt.NDArray[np.uint8]
    """uint8 [height, width, 3], RGB."""

    step_times_s: tuple[float, ...]
    tokens_written: tuple[int, ...]
    reference_time_s: float
    """Encoding of the reference images; in no step time."""

    preview_time_s: float
    """Decoding of the previews; in no step time."""

    decode_time_s: float
    kv_bytes: int
    peak_memory_bytes: int
