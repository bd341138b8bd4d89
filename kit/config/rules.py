"""Which settings exclude one another, which have no effect, with the reason and the way out."""

from __future__ import annotations

from kit.config.deploy import BASE_SOURCE, DeployConfig, shown, value_of
from kit.errors import ConfigError

OFFLOAD_FIELDS = (
    "enable_cpu_offload",
    "enable_layerwise_offload",
    "enable_distributed_layerwise_offload",
)

_PARALLEL = "stage.parallel_config."


def check_rules(config: DeployConfig) -> None:
    """Raise ConfigError for the first rule that the settings break."""
    if config.stage.is_paged:
        _check_paged(config)
    _check_prefix_caching(config)
    _check_degrees(config)
    _check_vae_ranks(config)
    _check_devices(config)
    _check_steps(config)
    _check_sampling(config)


def find_warnings(config: DeployConfig) -> tuple[str, ...]:
    """Return what is legal and may surprise, for the operator to read once."""
    stage = config.stage
    found = []
    if not stage.enforce_eager and stage.devices == "cpu":
        found.append(
            f"{_set_by(config, 'stage.enforce_eager')}: a CPU has no graphs and runs eagerly in "
            "any case"
        )
    if stage.is_paged:
        if stage.max_num_seqs > 1:
            found.append(
                f"{_set_by(config, 'stage.max_num_seqs')}: requests still run one at a time; the "
                "next one's pages are reserved while one runs"
            )
        if reason := _why_rows_share_nothing(config):
            found.append(
                f"{_set_by(config, 'stage.prefix_caching_levels')}: shares nothing: {reason}"
            )
        return tuple(found)
    if stage.max_num_seqs > 1 and not stage.step_execution:
        found.append(
            f"{_set_by(config, 'stage.max_num_seqs')}: requests run one at a time in dense_legacy "
            "without step_execution"
        )
    for name in (
        "diffusion_kv_max_rows_per_request",
        "kv_cache_memory_bytes",
        "diffusion_kv_page_size",
    ):
        dotted = f"stage.{name}"
        is_packaged = config.provenance[dotted].startswith(BASE_SOURCE)
        if getattr(stage, name) is not None and not is_packaged:
            found.append(
                f"{_set_by(config, dotted)}: has no effect in dense_legacy, which keeps no pages"
            )
    return tuple(found)


def _check_paged(config: DeployConfig) -> None:
    stage = config.stage
    mode_source = config.provenance["stage.diffusion_kv_mode"]
    # First, as the mode's own requirement; the others are about what stands beside it.
    if stage.diffusion_kv_max_rows_per_request is None:
        raise _refusal(
            config,
            "stage.diffusion_kv_max_rows_per_request",
            "paged_scheduler requires diffusion_kv_max_rows_per_request",
            "set it to 2 for guidance (two CFG rows) or to 1 without; diffusion_kv_mode: "
            f"paged_scheduler is set by {mode_source}",
        )
    dense = f"select diffusion_kv_mode: dense_legacy (paged_scheduler is set by {mode_source})"
    for dotted, is_refused, reason, remedy in (
        (
            "stage.step_execution",
            stage.step_execution,
            "paged_scheduler runs whole requests only",
            f"set it to false for request mode, or {dense}",
        ),
        (
            "stage.diffusion_attention_backend",
            stage.diffusion_attention_backend != "FLASH_ATTN",
            "paged_scheduler has kernels that read pages for FLASH_ATTN only",
            f"select FLASH_ATTN, or {dense}",
        ),
        *(
            (
                f"{_PARALLEL}{name}",
                value_of(config, f"{_PARALLEL}{name}") != 1,
                f"paged_scheduler has no {kind} sequence parallelism: the pages of a rank hold "
                "every key of its heads",
                f"set {name} to 1 and use strict Ulysses (ulysses_degree)",
            )
            for kind, name in (("Ring", "ring_degree"), ("AllGather-KV", "allgather_degree"))
        ),
        *(
            (
                f"stage.{name}",
                getattr(stage, name),
                "paged_scheduler is untested with offload, so the two exclude one another",
                f"set it to false, or {dense}",
            )
            for name in OFFLOAD_FIELDS
        ),
        (
            "stage.diffusion_kv_max_rows_per_request",
            stage.parallel_config.cfg_parallel_size > stage.diffusion_kv_max_rows_per_request,
            "cfg_parallel_size 2 runs two CFG rows per request",
            "set it to at least 2, or cfg_parallel_size to 1 (set by "
            f"{config.provenance[_PARALLEL + 'cfg_parallel_size']})",
        ),
    ):
        if is_refused:
            raise _refusal(config, dotted, reason, remedy)


def _check_prefix_caching(config: DeployConfig) -> None:
    stage, levels = config.stage, config.stage.prefix_caching_levels
    is_on = stage.enable_prefix_caching
    if is_on and not stage.is_paged:
        raise _refusal(
            config,
            "stage.enable_prefix_caching",
            "dense_legacy has no pages that could be shared",
            "set it to false, or select diffusion_kv_mode: paged_scheduler (dense_legacy is set by "
            f"{config.provenance['stage.diffusion_kv_mode']})",
        )
    if levels is None:
        return
    problem, remedy = "", "name some of rows, images, requests, each once, or leave it out for all"
    if not is_on:
        problem = (
            "has no effect without enable_prefix_caching, which is false (set by "
            f"{config.provenance['stage.enable_prefix_caching']})"
        )
        remedy = "set enable_prefix_caching to true, or remove it"
    elif not levels:
        problem = "names nobody who shares"
        remedy += "; to share nothing set enable_prefix_caching to false"
    elif len(set(levels)) < len(levels):
        problem = "names a level twice"
    if problem:
        raise _refusal(config, "stage.prefix_caching_levels", problem, remedy)


def _why_rows_share_nothing(config: DeployConfig) -> str:
    """Say why `rows` alone has no effect here; empty if it has, or if others share too."""
    stage = config.stage
    if stage.prefix_caching_levels != ("rows",):
        return ""
    if stage.parallel_config.cfg_parallel_size > 1:
        return "cfg_parallel_size puts each row on a rank of its own; add images or requests"
    if stage.diffusion_kv_max_rows_per_request == 1:
        return "diffusion_kv_max_rows_per_request is 1; raise it to 2, or add images or requests"
    return ""


def _check_degrees(config: DeployConfig) -> None:
    for name, what in (
        ("ring_degree", "do Ring sequence parallelism"),
        ("allgather_degree", "do AllGather-KV sequence parallelism"),
        ("pipeline_parallel_size", "split the layers over ranks"),
    ):
        if value_of(config, _PARALLEL + name) != 1:
            raise _refusal(
                config,
                _PARALLEL + name,
                f"known vLLM-Omni field; this kit does not {what}",
                f"set {name} to 1",
            )
    parallel = config.stage.parallel_config
    product = parallel.ulysses_degree * parallel.ring_degree * parallel.allgather_degree
    if parallel.sequence_parallel_size not in (None, product):
        raise _refusal(
            config,
            _PARALLEL + "sequence_parallel_size",
            f"must equal ulysses_degree x ring_degree x allgather_degree, which is {product} "
            f"(ulysses_degree is set by {config.provenance[_PARALLEL + 'ulysses_degree']})",
            f"set it to {product}, or ulysses_degree to {parallel.sequence_parallel_size}",
        )


def _check_vae_ranks(config: DeployConfig) -> None:
    parallel = config.stage.parallel_config
    name, ranks = _PARALLEL + "vae_patch_parallel_size", parallel.vae_patch_parallel_size
    group = parallel.group_size
    if group % ranks:
        sizes = ", ".join(str(size) for size in range(1, group + 1) if group % size == 0)
        raise _refusal(
            config,
            name,
            f"must divide {group}, the ranks that share a request (tensor x sequence x cfg)",
            f"use one of {sizes}",
        )
    if ranks > 1 and config.stage.vae_use_tiling:
        raise _refusal(
            config,
            name,
            "ranks divide the whole image, and vae_use_tiling (set by "
            f"{config.provenance['stage.vae_use_tiling']}) decodes tiles one by one",
            "set vae_use_tiling to false, or vae_patch_parallel_size to 1",
        )


def _check_devices(config: DeployConfig) -> None:
    stage = config.stage
    world_size = stage.parallel_config.world_size
    if stage.distributed_executor_backend == "inline" and world_size > 1:
        raise _refusal(
            config,
            "stage.distributed_executor_backend",
            f"inline runs one rank, and parallel_config makes {world_size}",
            "use mp, or leave it out",
        )
    if stage.devices == "cpu":
        if stage.diffusion_attention_backend == "CUDNN_ATTN":
            raise _refusal(
                config,
                "stage.diffusion_attention_backend",
                "CUDNN_ATTN needs CUDA, and devices is cpu (set by "
                f"{config.provenance['stage.devices']})",
                "select FLASH_ATTN or TORCH_SDPA, or name accelerators in devices",
            )
        return
    ids = stage.device_ids
    if len(set(ids)) != len(ids):
        raise _refusal(
            config, "stage.devices", "names an accelerator twice", "give each rank its own id"
        )
    parallel = stage.parallel_config
    if len(ids) != parallel.world_size:
        tensor_source = config.provenance[_PARALLEL + "tensor_parallel_size"]
        raise _refusal(
            config,
            "stage.devices",
            f"number of ids is {len(ids)}, number of ranks is {parallel.world_size}: "
            f"tensor {parallel.tensor_parallel_size} (set by {tensor_source}) x sequence "
            f"{parallel.sequence_size} x cfg {parallel.cfg_parallel_size} x data "
            f"{parallel.data_parallel_size}",
            f"name {parallel.world_size} in devices, or change parallel_config to match",
        )


def _check_steps(config: DeployConfig) -> None:
    stage = config.stage
    if stage.step_execution and stage.max_num_seqs > 1 and not stage.enforce_eager:
        if stage.devices == "cpu":
            return  # it runs eagerly in any case
        raise _refusal(
            config,
            "stage.step_execution",
            "requests that take turns need rows and latents of their own, and graphs keep those of "
            "all requests in one place (enforce_eager is set by "
            f"{config.provenance['stage.enforce_eager']})",
            "set enforce_eager to true, max_num_seqs to 1, or this to false",
        )


def _check_sampling(config: DeployConfig) -> None:
    sampling = config.stage.default_sampling_params
    for name, other in (("height", "width"), ("width", "height")):
        if getattr(sampling, name) is not None and getattr(sampling, other) is None:
            raise _refusal(
                config,
                f"stage.default_sampling_params.{name}",
                f"a default size needs {name} and {other}",
                f"set {other} too, or remove {name}",
            )


def _refusal(config: DeployConfig, dotted: str, reason: str, remedy: str) -> ConfigError:
    return ConfigError(
        shown(dotted),
        reason,
        value=value_of(config, dotted),
        source=config.provenance[dotted],
        remedy=remedy,
    )


def _set_by(config: DeployConfig, dotted: str) -> str:
    value = value_of(config, dotted)
    return f"{shown(dotted)} (got {value!r}, set by {config.provenance[dotted]})"
