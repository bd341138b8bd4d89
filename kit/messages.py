"""Everything that crosses the boundary between the engine and its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kit.config.deploy import KVMode
from kit.kv.allocation import KVAllocation
from kit.parallel.topology import ONE_RANK, Topology
from kit.request import RecordedPlatform, ReferenceImage, ResolvedSampling, StepEvent
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

    whole_experts: bool = False
    """Tensor ranks have whole experts, as many each, in place of slices of all."""

    topology: Topology = ONE_RANK
    """How the ranks of the worker group share a request."""

    vae_ranks: int = 1
    """The group's first ranks, which decode an image together; 1 with vae_tiling."""

    rank: int = 0
    """This worker's place in the group."""

    rendezvous: str | None = None
    """Where the ranks of the group meet, as an init_method of torch; None for one rank."""


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
    platform: RecordedPlatform
    """What computes here, as replay records state it."""

    host_weight_bytes: int = 0
    """Bytes of the parameters that wait in host memory."""

    bytes_read: int = 0
    """Of the checkpoint's files, by this rank."""

    read_time_s: float = 0.0
    """From the first of these bytes to the last one in its place on the device."""

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
class Tick:
    """Advance a request by one step, or to its image when all its steps are made."""

    request_id: str
    run: RunRequest | None
    """The request, with its first tick."""

    is_stopped: bool
    """It must not make another step."""


@dataclass(frozen=True)
class RunResult:
    """What a worker returns for a finished request."""

    request_id: str
    image: npt.NDArray[np.uint8]
    """uint8 [height, width, 3], RGB; [0, 0, 3] on ranks that do not speak for their group."""

    step_times_s: tuple[float, ...]
    tokens_written: tuple[int, ...]
    reference_time_s: float
    """Encoding of the reference images; in no step time."""

    preview_time_s: float
    """Decoding of the previews; in no step time."""

    decode_time_s: float
    kv_bytes: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class StartRank:
    """The first message to a rank's process."""

    config: WorkerConfig
    name: str
    """How its log lines call it."""

    log_level: int
    cpus: tuple[int, ...]
    """Processors that it keeps to; empty: any."""


@dataclass(frozen=True)
class StopRun:
    """The running request must not make another step."""

    request_id: str


@dataclass(frozen=True)
class Shutdown:
    """The rank's process must end."""


@dataclass(frozen=True)
class Loaded:
    """A rank is ready for requests."""

    info: WorkerInfo


@dataclass(frozen=True)
class Failure:
    """An exception of a rank, without its traceback: the rank has logged that."""

    kind: str
    """Name of its class."""

    message: str
    details: Mapping[str, str | int | float | None]
    """Its plain attributes."""


IsCancelled = Callable[[], bool]
"""Whether the request must not make another step; looked at between steps."""

ToRank = StartRank | RunRequest | Tick | StopRun | Shutdown
FromRank = Loaded | StepEvent | RunResult | Failure
"""A rank answers StartRank with Loaded or Failure, each RunRequest with StepEvents and then one
RunResult or Failure, each Tick with one of the three."""
