from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.config.foreign import FOREIGN_FIELDS
from kit.config.load import load_config
from kit.config.places import PARALLEL, SAMPLING, STAGE, TOP
from kit.errors import ConfigError


def words(text: str) -> set[str]:
    return set(text.split())


# What vLLM-Omni's deploy files may hold: an outside fact, so a list of its own.
OMNI_TOP = words("""
    async_chunk session_mode model_runner active_stream_window duplex_session connectors edges
    stages platforms pipeline base_config trust_remote_code distributed_executor_backend dtype
    quantization enable_prefix_caching enable_chunked_prefill data_parallel_size
    pipeline_parallel_size custom_voice_dir
""")
OMNI_STAGE = words("""
    stage_id devices num_replicas env async_chunk output_connectors input_connectors
    default_sampling_params default_pooling_params engine_extras engine_args runtime
    tensor_parallel_size enable_expert_parallel gpu_memory_utilization max_num_seqs
    max_num_batched_tokens max_model_len enforce_eager async_scheduling
    disable_hybrid_kv_cache_manager compilation_config profiler_config load_format tokenizer_mode
    ulysses_degree ulysses_mode ulysses_a2a_permute ring_degree allgather_degree
    context_parallel_degree sequence_parallel_size cfg_parallel_size vae_patch_parallel_size
    vae_parallel_mode text_encoder_tp_size use_hsdp hsdp_shard_size hsdp_replicate_size
    model_class_name diffusion_load_format lora_path lora_backend lora_scale
    diffusion_quantization_config diffusion_attention_backend diffusion_attention_config
    diffusion_compile_granularity diffusion_compile_dynamic fa_deterministic cache_backend
    cache_config enable_cache_dit_summary step_execution vae_use_slicing vae_use_tiling
    boundary_ratio flow_shift diffusion_kv_cache_dtype diffusion_kv_cache_skip_steps
    diffusion_kv_cache_skip_layers enable_multithread_weight_load enable_broadcast_weight_load
    num_weight_load_threads diffusion_offload_config enable_cpu_offload enable_layerwise_offload
    enable_distributed_layerwise_offload dlo_use_allgather dlo_resident_layers
    host_weight_runtime_mode host_weight_runtime_root dlo_host_registration_limit_gib
    enable_diffusion_pipeline_profiler max_generated_image_size kv_transfer_config omni_kv_config
    enable_prefix_caching enable_sleep_mode kv_cache_memory_bytes diffusion_kv_mode
    diffusion_kv_max_rows_per_request quantization quantization_config
""")
OMNI_PARALLEL = words("""
    pipeline_parallel_size data_parallel_size tensor_parallel_size enable_expert_parallel
    sequence_parallel_size ulysses_degree ulysses_mode ring_degree allgather_degree
    context_parallel_degree cfg_parallel_size vae_patch_parallel_size vae_parallel_mode use_hsdp
    hsdp_shard_size hsdp_replicate_size
""")
OMNI_SAMPLING = words("""
    seed num_outputs_per_prompt num_inference_steps guidance_scale height width flow_shift
""")


def test_every_omni_name_is_known_where_it_stands() -> None:
    assert TOP.names >= OMNI_TOP
    assert STAGE.names >= OMNI_STAGE
    assert PARALLEL.names >= OMNI_PARALLEL
    assert SAMPLING.names >= OMNI_SAMPLING


STAGE_NAMES = sorted(name for name, field in FOREIGN_FIELDS.items() if "stage" in field.places)
JUDGED_NAMES = [name for name in STAGE_NAMES if not FOREIGN_FIELDS[name].is_harmless]


@pytest.mark.parametrize("value", [None, False, "none", "auto", "", [], {}, {"need": False}])
def test_values_that_ask_for_nothing_pass(value: object) -> None:
    assert load_config(stage_overrides={"0": dict.fromkeys(STAGE_NAMES, value)}).warnings == ()


def test_every_neutral_value_of_the_table_passes() -> None:
    for index in range(4):
        settings = {
            name: FOREIGN_FIELDS[name].neutral[index]
            for name in STAGE_NAMES
            if index < len(FOREIGN_FIELDS[name].neutral)
        }
        assert settings
        assert load_config(stage_overrides={"0": settings}).warnings == ()


@pytest.mark.parametrize("value", ["something", {"need_recv_cache": True}])
@pytest.mark.parametrize("name", JUDGED_NAMES)
def test_other_values_are_refused_by_name_with_the_reason(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(stage_overrides={"0": {name: value}})
    error, message = caught.value, str(caught.value)
    assert (error.field, error.value) == (f"stages[0].{name}", value)
    assert FOREIGN_FIELDS[name].reason in message
    assert FOREIGN_FIELDS[name].remedy in message
    assert "set by --stage-overrides" in message
    assert "unknown" not in message


@pytest.mark.parametrize(
    ("settings", "field", "reason"),
    [
        ({"diffusion_kv_cache_dtype": "fp8"}, "diffusion_kv_cache_dtype", "not quantize keys"),
        ({"quantization": "fp8"}, "quantization", "not quantize weights"),
        (
            {"engine_extras": {"diffusion_kv_cache_dtype": "fp8"}},
            "diffusion_kv_cache_dtype",
            "not quantize keys",
        ),
        ({"ulysses_mode": "advanced_uaa"}, "ulysses_mode", "not pad sequences"),
        (
            {"parallel_config": {"ulysses_mode": "advanced_uaa"}},
            "parallel_config.ulysses_mode",
            "not pad sequences",
        ),
        (
            {"parallel_config": {"use_hsdp": True}},
            "parallel_config.use_hsdp",
            "hybrid sharded data parallelism",
        ),
        ({"parallel_config": {"use_hsdp": 1}}, "parallel_config.use_hsdp", "hybrid sharded"),
        ({"num_replicas": True}, "num_replicas", "not replicate"),
        (
            {"default_sampling_params": {"num_outputs_per_prompt": 2}},
            "default_sampling_params.num_outputs_per_prompt",
            "several images",
        ),
        ({"flow_shift": 3.0}, "flow_shift", "sampling defaults"),
        (
            {"omni_kv_config": {"need_recv_cache": True}},
            "omni_kv_config",
            "ar_diffusion_kv contract",
        ),
        ({"kv_transfer_config": {"role": "x"}}, "kv_transfer_config", "ar_diffusion_kv contract"),
        ({"input_connectors": {"from": 1}}, "input_connectors", "ar_diffusion_kv contract"),
        ({"ar_diffusion_kv": {"layers": 1}}, "ar_diffusion_kv", "ar_diffusion_kv contract"),
        ({"diffusion_kv_mode": "ar_diffusion_kv"}, "diffusion_kv_mode", "ar_diffusion_kv contract"),
        (
            {"diffusion_offload_config": {"x": True}},
            "diffusion_offload_config",
            "set enable_layerwise_offload",
        ),
        *(
            ({"diffusion_attention_backend": name}, "diffusion_attention_backend", "known backend")
            for name in (
                "FLASHINFER_ATTN",
                "SAGE_ATTN",
                "SAGE_ATTN_3",
                "VIDEO_SPARSE_ATTN",
                "SLIDING_TILE_ATTN",
                "HUB:flash-attn3",
                "kernels-community/flash-attn3",
            )
        ),
    ],
)
@pytest.mark.parametrize("is_paged", [False, True])
def test_known_refusals(
    settings: dict[str, object], field: str, reason: str, is_paged: bool
) -> None:
    paged = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
    with pytest.raises(ConfigError) as caught:
        load_config(stage_overrides={"0": (paged if is_paged else {}) | settings})
    assert caught.value.field == f"stages[0].{field}"
    assert reason in str(caught.value)
    assert "set by --stage-overrides" in str(caught.value)
    assert caught.value.remedy
    assert "unknown" not in str(caught.value)


def test_a_higher_layer_takes_a_foreign_value_back(write: Callable[..., Path]) -> None:
    path = write("stages: [{stage_id: 0, quantization: fp8}]")
    with pytest.raises(ConfigError, match="quantize"):
        load_config(path)
    assert load_config(path, stage_overrides={"0": {"quantization": "none"}}).warnings == ()


def test_a_harmless_value_is_warned_about() -> None:
    (warning,) = load_config(stage_overrides={"0": {"max_num_batched_tokens": 32768}}).warnings
    assert "stages[0].max_num_batched_tokens" in warning
    assert "has no effect (got 32768, set by --stage-overrides)" in warning
