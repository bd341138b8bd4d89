"""What a deployment takes on each rank, decided before anything is loaded.

A start decides by it, and `kit plan` shows it: so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from kit.config.deploy import DeployConfig, shown, value_of
from kit.errors import ConfigError
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import (
    ONE_RANK,
    ActivationBytes,
    Split,
    activation_bytes,
    automatic_pool_pages,
    check_split,
    kept_rows_bytes,
    kv_heads,
    kv_token_bytes,
    longest_row,
    most_rows,
    own_rows,
    pages_within,
    resident_weights,
    waiting_bytes,
    weight_bytes_by_part,
)
from kit.modelspec.tensors import REFERENCE_PARTS, Part
from kit.plan.page_size import check_page_size
from kit.platforms.memory import Memory
from kit.tokenizer.buckets import Bucket
from kit.tokenizer.references import num_reference_tokens

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class _Offload(TypedDict):
    stream_layers: bool
    vae_waits: bool


@dataclass(frozen=True)
class Precision:
    """The types that a start chooses."""

    dtype: Literal["float32", "bfloat16"]
    """Of weights, activations, keys and values."""

    vae_dtype: Literal["float32", "float16"]
    """Of the VAE decoder."""

    use_fused: bool
    """The kit's kernels run, on a card; else plain torch operations."""

    use_grouped: bool
    """Expert layers run in an NPU's operators."""

    @property
    def num_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def vae_num_bytes(self) -> int:
        return DTYPE_BYTES[self.vae_dtype]


@dataclass(frozen=True)
class RankMemory:
    """The bytes of one rank, in the order in which a start takes them."""

    kv: KVCacheManager | None
    """The pages of the pool; None in dense_legacy."""

    kept_rows_bytes: int
    """Contiguous rows of all requests, kept where later steps are replayed from graphs."""

    token_bytes: int
    """Keys and values of one token, all layers."""

    weights: Mapping[Part, int]
    """Those that are always on the device."""

    host_weight_bytes: int
    """Weights that wait in host memory."""

    working: ActivationBytes
    """Of the largest request that may be asked for: its room is left beside the pool."""

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())

    @property
    def pool_bytes(self) -> int:
        return 0 if self.kv is None else self.kv.pool_bytes

    @property
    def at_rest_bytes(self) -> int:
        """What is held whether a request runs or not."""
        return self.weight_bytes + self.pool_bytes + self.kept_rows_bytes


@dataclass(frozen=True)
class RequestShape:
    """What decides the memory of a request."""

    width: int
    height: int
    prefix_len: int
    num_rows: int
    reference: Bucket | None = None
    """The largest reference image that it brings."""


def choose_precision(config: DeployConfig, platform: str) -> Precision:
    """Return the types of a deployment: bfloat16 on accelerators unless it says otherwise."""
    wants = config.dtype
    if wants == "auto":
        # float32: the reference kernel computes in it, and bfloat16 is slower on most CPUs.
        wants = "float32" if platform == "cpu" else "bfloat16"
    is_card = platform != "cpu" and wants == "bfloat16"
    return Precision(
        wants,
        "float16" if is_card else "float32",
        use_fused=is_card and platform == "cuda",
        use_grouped=platform == "npu",
    )


def split_of(config: DeployConfig) -> Split:
    """Return how the ranks of a deployment share the model."""
    parallel = config.stage.parallel_config
    return Split(
        tensor=parallel.tensor_parallel_size,
        sequence=parallel.sequence_size,
        cfg=parallel.cfg_parallel_size,
        decode=parallel.vae_patch_parallel_size,
        whole_experts=parallel.enable_expert_parallel,
    )


def check_shares(model: ModelConfig, config: DeployConfig) -> None:
    """Raise ConfigError, with the sizes that go, when ranks cannot share the model evenly."""
    try:
        check_split(model, split_of(config))
    except ConfigError as error:
        dotted = f"stage.parallel_config.{error.field}"
        source = config.provenance[dotted]
        raise ConfigError(
            shown(dotted), error.reason, value=error.value, source=source, remedy=error.remedy
        ) from None


def rank_memory(
    model: ModelConfig,
    config: DeployConfig,
    memory: Memory,
    precision: Precision,
    *,
    largest: Bucket,
    page_size: int | None,
    use_graphs: bool,
    takes_references: bool,
) -> RankMemory:
    """Decide what a rank holds: weights, pool, and the room that requests need beside them.

    `largest` is the largest image that may be asked for or given as a reference, page_size None in
    dense_legacy; takes_references: what reads references is loaded. Raises
    ConfigError, with the number to set, for ranks that cannot share the model, weights that do not
    fit and a pool that does not fit beside them or holds no page.
    """
    check_shares(model, config)
    split = split_of(config)
    weights = _all_weights(model, precision, split, references=takes_references)
    resident = resident_weights(model, weights, **_offload(config))
    shape = _largest_shape(model, largest, takes_references=takes_references)
    working = working_bytes(model, shape, precision, config, split)
    token_bytes = kv_token_bytes(model, precision.num_bytes, split)
    room = memory.free_bytes - sum(resident.values())
    kv = None
    if page_size is not None:
        geometry = KVGeometry(
            num_layers=model.num_hidden_layers,
            num_kv_heads=kv_heads(model, split),
            head_dim=model.attention_head_dim,
            dtype_bytes=precision.num_bytes,
            page_size=page_size,
        )
        room -= working.peak
        if room < geometry.page_bytes:
            check_page_size(config, geometry, room)
            raise _model_does_not_fit(
                model, config, memory, precision, shape, takes_references=takes_references
            )
        max_rows = config.stage.diffusion_kv_max_rows_per_request
        assert max_rows is not None, "checked with the config"
        num_pages = _pool_pages(model, config, geometry, memory, room)
        kv = KVCacheManager(geometry, num_pages, max_rows, row_ranks=split.cfg)
    elif room < 0:
        raise _model_does_not_fit(
            model, config, memory, precision, None, takes_references=takes_references
        )
    kept = kept_rows_bytes(model, token_bytes, split) if kv is None and use_graphs else 0
    return RankMemory(
        kv=kv,
        kept_rows_bytes=kept,
        token_bytes=token_bytes,
        weights=resident,
        host_weight_bytes=waiting_bytes(weights, **_offload(config)),
        working=working,
    )


def working_bytes(
    model: ModelConfig,
    shape: RequestShape,
    precision: Precision,
    config: DeployConfig,
    split: Split,
) -> ActivationBytes:
    """Estimate the working memory of a request on one rank, weights that come for it included."""
    reference = shape.reference
    working = activation_bytes(
        model,
        height=shape.height,
        width=shape.width,
        prefix_len=shape.prefix_len,
        num_rows=shape.num_rows,
        dtype_bytes=precision.num_bytes,
        fused=precision.use_fused,
        grouped=precision.use_grouped and not split.whole_experts,
        vae_dtype_bytes=precision.vae_num_bytes,
        vae_tiling=config.stage.vae_use_tiling,
        split=split,
        reference_hw=None if reference is None else (reference.height, reference.width),
    )
    if not config.stage.enable_cpu_offload:
        return working
    arriving = _all_weights(model, precision, split, references=reference is not None)
    encode = sum(arriving.get(part, 0) for part in REFERENCE_PARTS)
    return replace(
        working,
        decode=working.decode + arriving["vae_decoder"],
        encode=working.encode + encode,
    )


def profiled_shape(
    model: ModelConfig, largest: Bucket, kv: KVCacheManager | None, *, takes_references: bool
) -> RequestShape | None:
    """Return the request that a start on a card runs: the longest rows that the pool holds.

    With a reference of the largest size, if there is room for one.

    None if the pool holds not even the largest image with a short prompt.
    """
    shape = _largest_shape(model, largest, takes_references=takes_references)
    if kv is None:
        return _with_room(model, shape)
    num_rows = min(shape.num_rows, kv.max_rows_per_request)
    longest = min(longest_row(model), kv.largest_num_tokens(num_rows))
    prefix_len = longest - model.num_target_tokens(largest.height, largest.width)
    if prefix_len <= 0:
        return None
    return _with_room(model, replace(shape, prefix_len=prefix_len, num_rows=num_rows))


def _all_weights(
    model: ModelConfig, precision: Precision, split: Split, *, references: bool
) -> Mapping[Part, int]:
    return weight_bytes_by_part(
        model,
        precision.num_bytes,
        vae_dtype_bytes=precision.vae_num_bytes,
        split=split,
        references=references,
    )


def _offload(config: DeployConfig) -> _Offload:
    stage = config.stage
    return {
        "stream_layers": stage.enable_layerwise_offload,
        "vae_waits": stage.enable_cpu_offload,
    }


def _largest_shape(model: ModelConfig, largest: Bucket, *, takes_references: bool) -> RequestShape:
    prefix_len = longest_row(model) - model.num_target_tokens(largest.height, largest.width)
    reference = largest if takes_references else None
    return RequestShape(largest.width, largest.height, prefix_len, most_rows(model), reference)


def _with_room(model: ModelConfig, shape: RequestShape) -> RequestShape:
    """Leave the reference out where no prefix with it and one token more fits."""
    reference = shape.reference
    if reference is None or num_reference_tokens(model, reference) < shape.prefix_len:
        return shape
    return replace(shape, reference=None)


def _pool_pages(
    model: ModelConfig, config: DeployConfig, geometry: KVGeometry, memory: Memory, room: int
) -> int:
    """Pages of the pool: the explicit budget, or max_num_seqs x rows x longest sequence."""
    stage, explicit = config.stage, config.stage.kv_cache_memory_bytes
    bytes_per_page, problem, remedy = geometry.page_bytes, "", ""
    if explicit is None:
        assert stage.diffusion_kv_max_rows_per_request is not None, "checked with the config"
        name = "gpu_memory_utilization"
        allowed = memory.pool_bytes(room, stage.gpu_memory_utilization)
        num_pages = automatic_pool_pages(
            model,
            max_num_seqs=stage.max_num_seqs,
            max_rows=own_rows(
                stage.diffusion_kv_max_rows_per_request, stage.parallel_config.cfg_parallel_size
            ),
            allowed_bytes=allowed,
            bytes_per_page=bytes_per_page,
            page_size=geometry.page_size,
        )
    else:
        name, allowed = "kv_cache_memory_bytes", explicit
        num_pages = pages_within(explicit, bytes_per_page)
        if explicit > room:
            problem = (
                f"the pool would not fit: beside weights and working memory {room} bytes are free"
            )
            remedy = f"set at most {room}, or free memory"
    if not problem and num_pages == 0:
        problem = f"there is room for no page of {geometry.page_size} tokens, {allowed} bytes given"
        remedy = f"a pool takes at least {bytes_per_page} bytes; free memory or raise it"
    if problem:
        dotted = f"stage.{name}"
        value, source = value_of(config, dotted), config.provenance[dotted]
        raise ConfigError(name, problem, value=value, source=source, remedy=remedy)
    return num_pages


def _model_does_not_fit(
    model: ModelConfig,
    config: DeployConfig,
    memory: Memory,
    precision: Precision,
    largest: RequestShape | None,
    *,
    takes_references: bool,
) -> ConfigError:
    """Say what is needed: weights, and beside a pool the working memory of the largest request."""
    split = split_of(config)

    def all_weights(split: Split) -> Mapping[Part, int]:
        return _all_weights(model, precision, split, references=takes_references)

    def needed(tensor: int) -> tuple[int, int]:
        other = replace(split, tensor=tensor)
        check_split(model, other)
        weights = resident_weights(model, all_weights(other), **_offload(config))
        working = 0
        if largest is not None:
            working = working_bytes(model, largest, precision, config, other).peak
        return sum(weights.values()), working

    weights, working = needed(split.tensor)
    remedy = f"each rank needs a device of more than {weights + working} free bytes"
    for tensor in range(split.tensor + 1, model.num_key_value_heads + 1):
        try:
            if sum(needed(tensor)) < memory.free_bytes:
                remedy = f"raise it to {tensor}, or take devices with more memory"
                break
        except ConfigError:
            continue
    if largest is None and config.stage.devices != "cpu" and split == ONE_RANK:
        streamed = resident_weights(model, all_weights(split), stream_layers=True, vae_waits=False)
        if sum(streamed.values()) < memory.free_bytes:
            offloads = any(_offload(config).values())
            remedy += "" if offloads else ", or set enable_layerwise_offload to true"
    works = f", the largest request works in {working}" if working else ""
    return ConfigError(
        "tensor_parallel_size",
        f"the weights of a rank take {weights} bytes{works}, and {memory.free_bytes} are free",
        value=split.tensor,
        source=config.provenance["stage.parallel_config.tensor_parallel_size"],
        remedy=remedy,
    )
