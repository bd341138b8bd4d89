"""Names and values that vLLM-Omni's deploy files know and this kit does not act upon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PlaceName = Literal["top", "stage", "parallel", "sampling"]

PLATFORM_NAMES = ("cuda", "rocm", "npu", "xpu", "musa", "cpu")

AR_KV_REASON = (
    "neither paged_scheduler nor dense_legacy consumes the ar_diffusion_kv contract: this kit "
    "computes all keys and values itself"
)


@dataclass(frozen=True)
class ForeignField:
    """A known field that may stand in a file as long as it asks for nothing."""

    places: frozenset[PlaceName]
    reason: str
    """Why another value is refused."""

    neutral: tuple[object, ...] = ()
    """Values that ask for nothing, beside the ones that never do (null, false, none, auto)."""

    remedy: str = "remove it"
    is_harmless: bool = False
    """Any value passes with a warning: it cannot change what a request gets."""

    def is_neutral(self, value: object) -> bool:
        """Tell whether a value asks for nothing."""
        if isinstance(value, Mapping):
            return all(_is_neutral_scalar(item) for item in value.values())
        # 1 == True in Python, but `use_hsdp: 1` is no size.
        return _is_neutral_scalar(value) or any(
            type(value) is type(item) and value == item for item in self.neutral
        )


_SIZE = (0, 1)


def _fields(
    places: tuple[PlaceName, ...],
    names: str,
    reason: str,
    *,
    neutral: tuple[object, ...] = (),
    remedy: str = "remove it",
    is_harmless: bool = False,
) -> dict[str, ForeignField]:
    field = ForeignField(frozenset(places), reason, neutral, remedy, is_harmless)
    return dict.fromkeys(names.split(), field)


def _lacks(what: str) -> str:
    return f"known vLLM-Omni field; this kit does not {what}"


_QUANTIZATION = _lacks("quantize weights, and keys and values in pages are unquantized")
_UNQUANTIZED = "remove it and use unquantized weights"

FOREIGN_FIELDS: Mapping[str, ForeignField] = {
    **_fields(("top", "stage"), "async_chunk", _lacks("pass chunks between stages")),
    **_fields(
        ("top",), "session_mode duplex_session active_stream_window", _lacks("keep sessions")
    ),
    **_fields(("top",), "model_runner", _lacks("have a choice of model runners")),
    **_fields(("top",), "connectors edges", _lacks("connect several stages")),
    **_fields(
        ("top",), "trust_remote_code", _lacks("run code that comes with a checkpoint, nor need any")
    ),
    **_fields(("top",), "enable_chunked_prefill", _lacks("split the first step of a request")),
    **_fields(("top",), "custom_voice_dir", _lacks("make speech")),
    **_fields(
        ("top", "stage"),
        "quantization",
        _QUANTIZATION,
        remedy=_UNQUANTIZED,
    ),
    **_fields(
        ("stage",),
        "quantization_config diffusion_quantization_config",
        _QUANTIZATION,
        remedy=_UNQUANTIZED,
    ),
    **_fields(("stage",), "num_replicas", _lacks("replicate a stage"), neutral=_SIZE),
    **_fields(("stage",), "env", _lacks("set environment variables from a deploy file")),
    **_fields(("stage",), "output_connectors", _lacks("connect several stages")),
    **_fields(
        ("stage",),
        "input_connectors kv_transfer_config omni_kv_config ar_diffusion_kv",
        AR_KV_REASON,
    ),
    **_fields(("stage",), "default_pooling_params", _lacks("pool hidden states")),
    **_fields(
        ("stage",),
        "engine_args runtime",
        _lacks("read this older nesting"),
        remedy="write its keys directly under the stage",
    ),
    **_fields(
        ("stage",),
        "max_num_batched_tokens",
        _lacks("batch tokens of several requests, so this has no effect"),
        is_harmless=True,
    ),
    **_fields(
        ("stage",),
        "max_model_len",
        _lacks("limit lengths by it: the checkpoint's image sizes and positions do"),
        neutral=(0,),
    ),
    **_fields(("stage",), "async_scheduling", _lacks("overlap scheduling with execution")),
    **_fields(
        ("stage",), "disable_hybrid_kv_cache_manager", _lacks("have a hybrid KV cache manager")
    ),
    **_fields(
        ("stage",),
        "compilation_config diffusion_compile_granularity diffusion_compile_dynamic",
        _lacks("compile the model"),
    ),
    **_fields(
        ("stage",),
        "profiler_config enable_diffusion_pipeline_profiler",
        _lacks("have a profiler switch in the deploy file"),
    ),
    **_fields(
        ("stage",), "load_format diffusion_load_format", _lacks("load formats but safetensors")
    ),
    **_fields(
        ("stage",),
        "enable_multithread_weight_load enable_broadcast_weight_load num_weight_load_threads",
        _lacks("have a choice of weight loaders"),
        neutral=_SIZE,
    ),
    **_fields(("stage",), "tokenizer_mode", _lacks("have a choice of tokenizers")),
    **_fields(("stage",), "model_class_name", _lacks("take the model class from a deploy file")),
    **_fields(
        ("stage", "parallel"),
        "ulysses_mode",
        _lacks("pad sequences for uneven Ulysses groups"),
        neutral=("strict",),
        remedy="set ulysses_mode: strict or remove it",
    ),
    **_fields(("stage",), "ulysses_a2a_permute", _lacks("have a choice of all-to-all layouts")),
    **_fields(
        ("stage", "parallel"),
        "context_parallel_degree",
        _lacks("do context parallelism"),
        neutral=_SIZE,
        remedy="remove it; sequences are shared by ulysses_degree",
    ),
    **_fields(
        ("stage", "parallel"),
        "vae_parallel_mode",
        _lacks("have another way for ranks to share the decoding than strips"),
    ),
    **_fields(("stage",), "text_encoder_tp_size", _lacks("have a text encoder"), neutral=_SIZE),
    **_fields(("stage", "parallel"), "use_hsdp", _lacks("do hybrid sharded data parallelism")),
    **_fields(
        ("stage", "parallel"),
        "hsdp_shard_size",
        _lacks("do hybrid sharded data parallelism"),
        neutral=(-1, *_SIZE),
    ),
    **_fields(
        ("stage", "parallel"),
        "hsdp_replicate_size",
        _lacks("do hybrid sharded data parallelism"),
        neutral=_SIZE,
    ),
    **_fields(("stage",), "lora_path lora_backend", _lacks("load LoRA weights")),
    **_fields(("stage",), "lora_scale", _lacks("load LoRA weights"), neutral=(0, 1, 0.0, 1.0)),
    **_fields(
        ("stage",),
        "diffusion_attention_config",
        _lacks("tune attention per layer"),
        remedy="remove it; choose a backend by diffusion_attention_backend",
    ),
    **_fields(("stage",), "fa_deterministic", _lacks("have a switch for deterministic attention")),
    **_fields(
        ("stage",),
        "cache_backend cache_config enable_cache_dit_summary",
        _lacks("reuse transformer outputs between steps"),
    ),
    **_fields(
        ("stage",),
        "flow_shift",
        _lacks("read it here: it is one of the sampling defaults"),
        remedy="write it as stages[0].default_sampling_params.flow_shift",
    ),
    **_fields(("stage",), "boundary_ratio", _lacks("switch between two transformers")),
    **_fields(
        ("stage",),
        "diffusion_kv_cache_dtype diffusion_kv_cache_skip_steps diffusion_kv_cache_skip_layers",
        _lacks("quantize keys and values: pages hold the model's dtype"),
    ),
    **_fields(
        ("stage",),
        "diffusion_offload_config dlo_use_allgather dlo_resident_layers host_weight_runtime_mode "
        "host_weight_runtime_root dlo_host_registration_limit_gib",
        _lacks("have settings of offload but on and off"),
        neutral=(0,),
        remedy="remove it, or set enable_layerwise_offload or enable_cpu_offload",
    ),
    **_fields(
        ("stage",),
        "max_generated_image_size",
        _lacks("limit sizes from the deploy file: the checkpoint's sizes are the limit"),
    ),
    **_fields(("stage",), "enable_sleep_mode", _lacks("put a loaded model to sleep")),
    **_fields(
        ("sampling",),
        "num_outputs_per_prompt",
        _lacks("make several images of one request"),
        neutral=(1,),
        remedy="set it to 1 or remove it",
    ),
}

_FOREIGN_BACKENDS = {
    "FLASHINFER_ATTN": "FlashInfer kernels",
    "SAGE_ATTN": "quantized SageAttention kernels",
    "SAGE_ATTN_3": "quantized SageAttention kernels",
    "VIDEO_SPARSE_ATTN": "sparse video attention",
    "SLIDING_TILE_ATTN": "sliding-tile video attention",
}


def foreign_names(place: PlaceName) -> frozenset[str]:
    """Names of the known foreign fields of one place."""
    return frozenset(name for name, field in FOREIGN_FIELDS.items() if place in field.places)


def foreign_backend_reason(name: object) -> str | None:
    """Return why a known foreign attention backend is refused; None for all other values."""
    if not isinstance(name, str):
        return None
    if name in _FOREIGN_BACKENDS:
        return f"known backend; this kit does not run {_FOREIGN_BACKENDS[name]}"
    if name.upper().startswith("HUB:") or "/" in name:
        return "known backend; this kit does not fetch kernels from a hub"
    return None


def _is_neutral_scalar(value: object) -> bool:
    return value is None or value is False or value in ("", "none", "auto") or value in ([], {})
