"""What is decided once at start: device, dtype, page geometry, pool size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit.attention.capabilities import resolve_page_size
from kit.config.deploy import DeployConfig
from kit.errors import ConfigError, UnsupportedError
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.messages import WorkerConfig, WorkerInfo
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import automatic_pool_bytes
from kit.platforms.base import Platform
from kit.platforms.cpu import CpuPlatform
from kit.telemetry.log import get_logger

logger = get_logger("engine")

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class StartPlan:
    """The resolved start: what the worker loads and what the Scheduler books."""

    worker: WorkerConfig
    kv: KVCacheManager | None
    """None in dense_legacy."""


def select_platform(devices: str) -> Platform:
    """Return the platform that `devices` names; raises UnsupportedError."""
    if devices == "cpu":
        return CpuPlatform()
    raise UnsupportedError(
        f"devices: got {devices!r}, this version runs on the CPU only; set devices: \"cpu\""
    )


def plan_worker(folder: Path, model: ModelConfig, config: DeployConfig) -> StartPlan:
    """Resolve everything that must be known before weights load.

    Raises UnsupportedError (platform, backend) or ConfigError (page size, pool size).
    """
    stage = config.stage
    platform = select_platform(stage.devices)
    dtype: Literal["float32", "bfloat16"] = (
        "bfloat16" if _dtype(config, platform) == "bfloat16" else "float32"
    )
    page_size, kv, num_pages = None, None, 0
    if stage.diffusion_kv_mode == "paged_scheduler":
        page_size = resolve_page_size(
            stage.diffusion_attention_backend,
            platform.name,
            head_dim=model.attention_head_dim,
            requested=stage.diffusion_kv_page_size,
        )
        geometry = KVGeometry(
            num_layers=model.num_hidden_layers,
            num_kv_heads=model.num_key_value_heads,
            head_dim=model.attention_head_dim,
            dtype_bytes=DTYPE_BYTES[dtype],
            page_size=page_size,
        )
        assert stage.diffusion_kv_max_rows_per_request is not None, "checked with the config"
        num_pages = _pool_pages(model, config, geometry, platform)
        kv = KVCacheManager(geometry, num_pages, stage.diffusion_kv_max_rows_per_request)
    worker = WorkerConfig(
        model_path=str(folder),
        device=platform.name,
        dtype=dtype,
        kv_mode=stage.diffusion_kv_mode,
        attention_backend=stage.diffusion_attention_backend,
        page_size=page_size,
        num_pages=num_pages,
    )
    return StartPlan(worker, kv)


def log_start(folder: Path, config: DeployConfig, plan: StartPlan, info: WorkerInfo) -> None:
    """Tell operators what really runs, and every warning of the configuration."""
    for warning in config.warnings:
        logger.warning("%s", warning)
    logger.info(
        "model %s: dtype %s, device %s, weights %.1f MiB, loaded in %.2f s",
        folder, info.dtype, info.device, info.weight_bytes / 2**20, info.load_time_s,
    )
    logger.info(
        "KV mode %s: resolved backend %s, kernel %s %s",
        plan.worker.kv_mode, info.backend, info.kernel, info.kernel_version,
    )
    if plan.kv is not None:
        logger.info(
            "page pool: %d pages of %s tokens, %d bytes per page, pool %d bytes (%s)",
            plan.worker.num_pages, info.page_size, plan.kv.geometry.page_bytes, info.pool_bytes,
            "kv_cache_memory_bytes" if config.stage.kv_cache_memory_bytes else "automatic size",
        )


def _dtype(config: DeployConfig, platform: Platform) -> str:
    return platform.default_dtype if config.dtype == "auto" else config.dtype


def _pool_pages(
    model: ModelConfig, config: DeployConfig, geometry: KVGeometry, platform: Platform
) -> int:
    """Pages of the pool: the explicit budget, or max_num_seqs x rows x longest sequence."""
    stage = config.stage
    given, free = stage.kv_cache_memory_bytes, platform.free_memory_bytes()
    if given is None:
        assert stage.diffusion_kv_max_rows_per_request is not None, "checked with the config"
        given = automatic_pool_bytes(
            model,
            max_num_seqs=stage.max_num_seqs,
            max_rows=stage.diffusion_kv_max_rows_per_request,
            free_bytes=free,
            utilization=stage.gpu_memory_utilization,
            dtype_bytes=geometry.dtype_bytes,
            page_size=geometry.page_size,
        )
        field, source = "gpu_memory_utilization", config.provenance["stage.gpu_memory_utilization"]
        value: object = stage.gpu_memory_utilization
        remedy = "free memory, raise it, or set kv_cache_memory_bytes"
    else:
        field, source = "kv_cache_memory_bytes", config.provenance["stage.kv_cache_memory_bytes"]
        value = given
        remedy = f"set at least {geometry.page_bytes}, one page of {geometry.page_size} tokens"
        if given > free:
            raise ConfigError(
                field,
                f"the pool would not fit: {free} bytes are free on {platform.name}",
                value=given,
                source=source,
                remedy=f"set at most {free}",
            )
    num_pages = given // geometry.page_bytes
    if num_pages < 1:
        raise ConfigError(
            field,
            f"leaves room for no page: a page takes {geometry.page_bytes} bytes",
            value=value,
            source=source,
            remedy=remedy,
        )
    return num_pages
