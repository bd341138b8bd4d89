"""The deploy schema: every setting of a deployment, its type, its range and its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

PIPELINE: Final = "hunyuan_image3_dit"

BASE_SOURCE = f"base {PIPELINE}.yaml"
"""How provenance and messages call the packaged base of the pipeline."""

DEFAULT_SOURCE = "default"
"""How provenance calls a value that nobody set."""

DType = Literal["auto", "float32", "bfloat16"]
KVMode = Literal["dense_legacy", "paged_scheduler"]
ExecutorBackend = Literal["inline", "mp", "ray"]
PrefixLevel = Literal["rows", "images", "requests"]
AttentionBackend = Literal["FLASH_ATTN", "TORCH_SDPA", "CUDNN_ATTN"]
Count = Annotated[int, Field(ge=1)]
_ID = "(0|[1-9][0-9]{0,3})"
DeviceList = Annotated[str, Field(pattern=rf"^(cpu|{_ID}( *, *{_ID})*)$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class ParallelConfig(_Frozen):
    """How the ranks of one deployment share the work."""

    tensor_parallel_size: Count = 1
    """Ranks that share every weight matrix."""

    sequence_parallel_size: Count | None = None
    """Ranks that share the token axis; None means the product of the three degrees below."""

    ulysses_degree: Count = 1
    """Ranks that exchange heads for tokens around attention."""

    ring_degree: Count = 1
    """Ranks that pass keys and values around in a ring; only 1 is implemented."""

    allgather_degree: Count = 1
    """Ranks that gather all keys and values; only 1 is implemented."""

    cfg_parallel_size: Annotated[int, Field(ge=1, le=2)] = 1
    """2 puts the conditional and the unconditional row on ranks of their own."""

    data_parallel_size: Count = 1
    """Complete copies of the model."""

    pipeline_parallel_size: Count = 1
    """Ranks that share the layers; only 1 is implemented."""

    enable_expert_parallel: bool = False
    """Whole experts on each tensor-parallel rank, in place of slices of every expert."""

    vae_patch_parallel_size: Count = 1
    """Ranks of a group that decode an image together, a strip of rows each."""

    @property
    def sequence_size(self) -> int:
        """Ranks that share the token axis, always a number."""
        return self.sequence_parallel_size or (
            self.ulysses_degree * self.ring_degree * self.allgather_degree
        )

    @property
    def group_size(self) -> int:
        """Ranks of a worker group, which run one request together: tensor x sequence x cfg."""
        return self.tensor_parallel_size * self.sequence_size * self.cfg_parallel_size

    @property
    def world_size(self) -> int:
        """Ranks of the deployment."""
        return self.group_size * self.data_parallel_size


class SamplingDefaults(_Frozen):
    """Sampling values for requests that do not give their own; None takes the checkpoint's."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """Seed of the initial noise; None draws one per request."""

    num_inference_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Denoising steps."""

    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    """Classifier-free guidance; at most 1 runs one row."""

    height: Count | None = None
    """Image height in pixels; goes with `width`. None means the checkpoint's square size."""

    width: Count | None = None
    """Image width in pixels; goes with `height`."""

    flow_shift: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Shift of the flow-matching schedule."""


class StageConfig(_Frozen):
    """The diffusion stage, the only one of this pipeline."""

    stage_id: Literal[0] = 0
    """Always 0."""

    max_num_seqs: Count = 1
    """Admitted requests that may hold keys and values; above 1 the next request's pages are
    reserved while one runs, and with step_execution all of them run, a step each in turn."""

    max_queued_requests: Count = 64
    """Requests that may wait behind the one that runs; one more is refused with HTTP 503."""

    enforce_eager: bool = True
    """false: on CUDA, later steps are captured in graphs and replayed; on the CPU it changes
    nothing and is warned about, on an NPU it is refused."""

    devices: DeviceList = "cpu"
    """`cpu`, or the accelerator ids of the ranks as a comma list, as many as there are ranks."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Fraction of the device's memory that the automatic page pool may bring the kit up to; on
    the CPU, of the free memory."""

    kv_cache_memory_bytes: Count | None = None
    """Bytes of the page pool on each rank; None sizes it automatically."""

    diffusion_attention_backend: AttentionBackend = "FLASH_ATTN"
    """Logical attention backend; pages need FLASH_ATTN."""

    step_execution: bool = False
    """Schedule single denoising steps in place of whole requests; needs dense_legacy, and
    enforce_eager where max_num_seqs is above 1."""

    vae_use_slicing: bool = False
    """Decode one image at a time. The kit always does, so true changes nothing."""

    vae_use_tiling: bool = False
    """Decode an image in overlapping tiles."""

    enable_cpu_offload: bool = False
    """Keep the VAE decoder in host memory while it does not run; needs dense_legacy and a card."""

    enable_layerwise_offload: bool = False
    """Keep the decoder layers in host memory, two at a time on the card, the next one on its way
    while one runs; needs dense_legacy, a card and enforce_eager."""

    enable_distributed_layerwise_offload: bool = False
    """Keep idle layers in the host memory of several ranks; needs dense_legacy."""

    enable_prefix_caching: bool = False
    """Compute equal prefixes once and share their pages; needs paged_scheduler."""

    prefix_caching_levels: Annotated[tuple[PrefixLevel, ...], Field(strict=False)] | None = None
    """Who shares: `rows` (the CFG rows of a request), `images` (the n images of one request),
    `requests` (later requests, and with them those images); None means all three."""

    diffusion_kv_mode: KVMode = "dense_legacy"
    """Where keys and values live: contiguous per request, or in pages that the Scheduler owns."""

    diffusion_kv_max_rows_per_request: Count | None = None
    """Most rows one request may have, CFG branches counted; None only without pages."""

    diffusion_kv_page_size: Count | None = None
    """Token slots per page; None takes the size that suits the attention kernel."""

    distributed_executor_backend: ExecutorBackend | None = None
    """Where ranks run: `inline` in the server's process, one rank only; `mp` in a process each;
    `ray` anywhere in a Ray cluster. None means inline for one rank, mp for more."""

    execute_model_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    """Seconds that ranks in processes of their own may take for a step, or for decoding, before
    they are taken for stuck, killed and started anew."""

    allow_unvalidated_topology: bool = False
    """Start with a parallel_config that no record shows equal to one rank; docs/parallelism.md
    lists those that have one."""

    parallel_config: ParallelConfig = ParallelConfig()
    """How the ranks share the work."""

    default_sampling_params: SamplingDefaults = SamplingDefaults()
    """Sampling values for requests that do not give their own."""

    @property
    def shared_levels(self) -> frozenset[PrefixLevel]:
        """Who shares prefix pages; nobody without enable_prefix_caching."""
        if not self.enable_prefix_caching:
            return frozenset()
        return frozenset(self.prefix_caching_levels or get_args(PrefixLevel))

    @property
    def is_paged(self) -> bool:
        return self.diffusion_kv_mode == "paged_scheduler"

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Accelerator ids in rank order; empty on the CPU."""
        if self.devices == "cpu":
            return ()
        return tuple(int(part) for part in self.devices.split(","))


class DeployConfig(_Frozen):
    """One deployment, resolved: every value known, with the one who set it."""

    pipeline: Literal["hunyuan_image3_dit"] = PIPELINE
    """The standalone diffusion transformer; no other pipeline is implemented."""

    dtype: DType = "auto"
    """Type of weights and activations; auto means bfloat16 on accelerators, float32 on the CPU."""

    stage: StageConfig = StageConfig()
    """The diffusion stage."""

    provenance: Mapping[str, str] = {}
    """Dotted field, such as `stage.parallel_config.ring_degree`, to the one who set it."""

    warnings: tuple[str, ...] = ()
    """What an operator should read once at start."""


def executor_backend(config: DeployConfig) -> ExecutorBackend:
    """Return where the ranks of a deployment run."""
    named = config.stage.distributed_executor_backend
    if named is not None:
        return named
    return "inline" if config.stage.parallel_config.world_size == 1 else "mp"


def leaf_fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its dotted name, in the order of the schema."""
    for name, info in _leaves(DeployConfig, ""):
        if name not in _NOT_SETTINGS:
            yield name, info


def leaf_values(config: DeployConfig) -> Iterator[tuple[str, object]]:
    """Yield the dotted name and the value of every setting, in the order of the schema."""
    for name, _ in leaf_fields():
        yield name, value_of(config, name)


def value_of(config: DeployConfig, dotted: str) -> object:
    """Return the value of a dotted field."""
    value: object = config
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


def shown(dotted: str) -> str:
    """Return a dotted field as an operator finds it in a deploy file."""
    return f"stages[0]{dotted.removeprefix('stage')}" if dotted.startswith("stage.") else dotted


_NOT_SETTINGS = {"provenance", "warnings"}


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _leaves(info.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info
