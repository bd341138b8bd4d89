"""What is decided once at start: device, dtype, page geometry, pool size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit.attention.capabilities import resolve_kernel, resolve_page_size
from kit.config.deploy import DeployConfig, value_of
from kit.errors import ConfigError
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.messages import WorkerConfig, WorkerInfo
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import (
    activation_bytes,
    automatic_pool_bytes,
    longest_row,
    most_rows,
    weight_bytes,
)
from kit.platforms.base import Platform
from kit.platforms.detect import open_platform
from kit.telemetry.log import get_logger
from kit.tokenizer.buckets import Bucket

logger = get_logger("engine")

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class StartPlan:
    """The resolved start: what the worker loads and what the Scheduler books."""

    worker: WorkerConfig
    kv: KVCacheManager | None
    """None in dense_legacy."""


def plan_worker(
    folder: Path, model: ModelConfig, largest: Bucket, config: DeployConfig
) -> StartPlan:
    """Resolve everything that must be known before weights load.

    `largest` is the largest image that may be asked for. Raises UnsupportedError (platform,
    backend) or ConfigError (page size, pool size).
    """
    stage = config.stage
    platform = open_platform(stage.device_ids)
    dtype: Literal["float32", "bfloat16"] = (
        "bfloat16" if _dtype(config, platform) == "bfloat16" else "float32"
    )
    resolve_kernel(
        stage.diffusion_attention_backend,
        platform.name,
        stage.diffusion_kv_mode,
        dtype=dtype,
        head_dim=model.attention_head_dim,
        compute_capability=platform.compute_capability,
    )
    use_graphs = platform.name == "cuda" and not stage.enforce_eager
    if use_graphs:
        _check_graphs(config, dtype)
    vae_dtype: Literal["float32", "float16"] = (
        "float16" if platform.name == "cuda" and dtype == "bfloat16" else "float32"
    )
    page_size, kv, num_pages = None, None, 0
    if stage.diffusion_kv_mode == "paged_scheduler":
        page_size = resolve_page_size(
            stage.diffusion_attention_backend,
            platform.name,
            head_dim=model.attention_head_dim,
            requested=stage.diffusion_kv_page_size,
            compute_capability=platform.compute_capability,
        )
        geometry = KVGeometry(
            num_layers=model.num_hidden_layers,
            num_kv_heads=model.num_key_value_heads,
            head_dim=model.attention_head_dim,
            dtype_bytes=DTYPE_BYTES[dtype],
            page_size=page_size,
        )
        assert stage.diffusion_kv_max_rows_per_request is not None, "checked with the config"
        room = _room_for_pool(model, largest, platform, dtype, vae_dtype)
        num_pages = _pool_pages(model, config, geometry, platform, room)
        kv = KVCacheManager(geometry, num_pages, stage.diffusion_kv_max_rows_per_request)
    worker = WorkerConfig(
        model_path=str(folder),
        device=":".join((platform.name, *map(str, stage.device_ids[:1]))),
        dtype=dtype,
        vae_dtype=vae_dtype,
        kv_mode=stage.diffusion_kv_mode,
        attention_backend=stage.diffusion_attention_backend,
        page_size=page_size,
        num_pages=num_pages,
        use_graphs=use_graphs,
    )
    return StartPlan(worker, kv)


def _check_graphs(config: DeployConfig, dtype: str) -> None:
    backend, problem, other = config.stage.diffusion_attention_backend, "", ""
    if dtype != "bfloat16":
        problem = f"graphs need dtype bfloat16: in {dtype} the expert layers wait for the host"
        other = "dtype to bfloat16"
    elif backend != "FLASH_ATTN":
        problem = f"graphs need FLASH_ATTN: {backend} has other masks for every prompt length"
        other = "diffusion_attention_backend to FLASH_ATTN"
    if problem:
        raise ConfigError(
            "enforce_eager",
            problem,
            value=False,
            source=config.provenance["stage.enforce_eager"],
            remedy=f"set it to true, or {other}",
        )


def log_start(folder: Path, config: DeployConfig, plan: StartPlan, info: WorkerInfo) -> None:
    """Tell operators what really runs, and every warning of the configuration."""
    for warning in config.warnings:
        logger.warning("%s", warning)
    logger.info(
        "model %s: dtype %s, device %s, weights %.1f MiB, loaded in %.2f s",
        folder,
        info.dtype,
        info.device,
        info.weight_bytes / 2**20,
        info.load_time_s,
    )
    logger.info(
        "KV mode %s: resolved backend %s, kernel %s %s",
        plan.worker.kv_mode,
        info.backend,
        info.kernel,
        info.kernel_version,
    )
    if info.device != "cpu":
        logger.info(
            "expert layers: %s; later steps: %s; VAE decoder in %s",
            info.expert_layer,
            "replayed from graphs" if plan.worker.use_graphs else "eager",
            plan.worker.vae_dtype,
        )
    if plan.kv is not None:
        logger.info(
            "page pool: %d pages of %s tokens, %d bytes per page, pool %d bytes (%s)",
            plan.worker.num_pages,
            info.page_size,
            plan.kv.geometry.page_bytes,
            info.pool_bytes,
            "kv_cache_memory_bytes" if config.stage.kv_cache_memory_bytes else "automatic size",
        )


def _dtype(config: DeployConfig, platform: Platform) -> str:
    return platform.default_dtype if config.dtype == "auto" else config.dtype


def _room_for_pool(
    model: ModelConfig, largest: Bucket, platform: Platform, dtype: str, vae_dtype: str
) -> int:
    """Bytes that stay free beside the weights and the working memory of the largest request."""
    tokens = largest.height * largest.width // model.vae_downsample_factor**2
    dtype_bytes, vae_dtype_bytes = DTYPE_BYTES[dtype], DTYPE_BYTES[vae_dtype]
    working = activation_bytes(
        model,
        height=largest.height,
        width=largest.width,
        prefix_len=longest_row(model) - tokens - model.num_special,
        num_rows=most_rows(model),
        dtype_bytes=dtype_bytes,
        fused=platform.name == "cuda" and dtype == "bfloat16",
        vae_dtype_bytes=vae_dtype_bytes,
    )
    weights = weight_bytes(model, dtype_bytes, vae_dtype_bytes=vae_dtype_bytes)
    return platform.free_memory_bytes() - weights - working.peak


def _pool_pages(
    model: ModelConfig,
    config: DeployConfig,
    geometry: KVGeometry,
    platform: Platform,
    room: int,
) -> int:
    """Pages of the pool: the explicit budget, or max_num_seqs x rows x longest sequence."""
    stage, explicit = config.stage, config.stage.kv_cache_memory_bytes
    if explicit is None:
        assert stage.diffusion_kv_max_rows_per_request is not None, "checked with the config"
        name = "gpu_memory_utilization"
        given = automatic_pool_bytes(
            model,
            max_num_seqs=stage.max_num_seqs,
            max_rows=stage.diffusion_kv_max_rows_per_request,
            allowed_bytes=platform.pool_bytes(room, stage.gpu_memory_utilization),
            dtype_bytes=geometry.dtype_bytes,
            page_size=geometry.page_size,
        )
    else:
        name, given = "kv_cache_memory_bytes", explicit
    dotted = f"stage.{name}"
    problem = ""
    if given > room:
        problem = f"the pool would not fit: beside weights and working memory {room} bytes are free"
        remedy = f"set at most {max(room, 0)}, or free memory"
    elif given < geometry.page_bytes:
        problem = f"there is room for no page of {geometry.page_size} tokens, {given} bytes given"
        remedy = f"a pool takes at least {geometry.page_bytes} bytes; free memory or raise it"
    if problem:
        value, source = value_of(config, dotted), config.provenance[dotted]
        raise ConfigError(name, problem, value=value, source=source, remedy=remedy)
    return given // geometry.page_bytes
