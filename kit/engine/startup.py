"""What is decided once at start: device, dtype, page geometry, pool size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kit.attention.capabilities import resolve_kernel, resolve_page_size
from kit.config.deploy import DeployConfig, executor_backend
from kit.engine.preprocess import Preprocessor
from kit.errors import ConfigError
from kit.kv.manager import KVCacheManager
from kit.messages import WorkerConfig, WorkerInfo
from kit.parallel.validated import check_validated, is_validated, topology_of
from kit.plan.placement import check_placement
from kit.plan.rank import check_shares, choose_precision, rank_memory
from kit.platforms.detect import device_memory, open_platform
from kit.telemetry.log import get_logger

logger = get_logger("engine")


@dataclass(frozen=True)
class StartPlan:
    """The resolved start: what the worker loads and what the Scheduler books."""

    groups: tuple[tuple[WorkerConfig, ...], ...]
    """What each rank of each worker group loads."""

    pools: tuple[KVCacheManager | None, ...]
    """The pages of each group; None in dense_legacy."""

    @property
    def worker(self) -> WorkerConfig:
        """What the first rank loads; others differ in device and place."""
        return self.groups[0][0]

    @property
    def kv(self) -> KVCacheManager | None:
        """The pages of the first group; the others have as many."""
        return self.pools[0]


def plan_worker(preprocessor: Preprocessor, config: DeployConfig) -> StartPlan:
    """Resolve everything that must be known before weights load.

    Raises UnsupportedError (platform, backend) or ConfigError (page size, pool size).
    """
    stage, model = config.stage, preprocessor.model
    takes_references = preprocessor.reference_refusal is None
    platform = open_platform(stage.device_ids)
    check_shares(model, config)
    check_validated(config, platform.name)
    precision = choose_precision(config, platform.name)
    resolve_kernel(
        stage.diffusion_attention_backend,
        platform.name,
        stage.diffusion_kv_mode,
        dtype=precision.dtype,
        head_dim=model.attention_head_dim,
        compute_capability=platform.compute_capability,
    )
    check_placement(config, platform.name, precision.dtype)
    use_graphs = platform.name == "cuda" and not stage.enforce_eager
    page_size = None
    if stage.is_paged:
        page_size = resolve_page_size(
            stage.diffusion_attention_backend,
            platform.name,
            head_dim=model.attention_head_dim,
            requested=stage.diffusion_kv_page_size,
            compute_capability=platform.compute_capability,
        )
    rank = rank_memory(
        model,
        config,
        device_memory(stage.device_ids, stage.parallel_config.world_size),
        precision,
        largest=preprocessor.largest_bucket,
        page_size=page_size,
        use_graphs=use_graphs,
        takes_references=takes_references,
    )
    worker = WorkerConfig(
        model_path=str(preprocessor.folder),
        device=":".join((platform.name, *map(str, stage.device_ids[:1]))),
        dtype=precision.dtype,
        vae_dtype=precision.vae_dtype,
        kv_mode=stage.diffusion_kv_mode,
        attention_backend=stage.diffusion_attention_backend,
        page_size=page_size,
        num_pages=0 if rank.kv is None else rank.kv.pool.num_pages,
        use_graphs=use_graphs,
        stream_layers=stage.enable_layerwise_offload,
        vae_tiling=stage.vae_use_tiling,
        vae_ranks=stage.parallel_config.vae_patch_parallel_size,
        vae_waits=stage.enable_cpu_offload,
        takes_references=takes_references,
        whole_experts=stage.parallel_config.enable_expert_parallel,
        topology=topology_of(config),
    )
    if rank.host_weight_bytes:
        _check_host_memory(config, rank.host_weight_bytes)
    others = range(1, config.stage.parallel_config.data_parallel_size)
    copies = (None if rank.kv is None else rank.kv.empty_copy() for _ in others)
    return StartPlan(_groups(worker, config), (rank.kv, *copies))


def _groups(first: WorkerConfig, config: DeployConfig) -> tuple[tuple[WorkerConfig, ...], ...]:
    """Return what each rank loads; accelerators are given out in the order of groups and ranks."""
    ids, size = config.stage.device_ids, first.topology.size
    groups = []
    for group in range(config.stage.parallel_config.data_parallel_size):
        ranks = []
        for rank in range(size):
            device = first.device
            if ids:
                device = f"{device.partition(':')[0]}:{ids[group * size + rank]}"
            ranks.append(replace(first, device=device, rank=rank))
        groups.append(tuple(ranks))
    return tuple(groups)


def _check_host_memory(config: DeployConfig, host_bytes: int) -> None:
    free = open_platform(()).memory().free_bytes
    if host_bytes > free:
        streams = config.stage.enable_layerwise_offload
        name = "enable_layerwise_offload" if streams else "enable_cpu_offload"
        raise ConfigError(
            name,
            f"the weights that wait take {host_bytes} bytes of host memory, {free} are free",
            value=True,
            source=config.provenance[f"stage.{name}"],
            remedy="set it to false",
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
    stage, topology = config.stage, plan.worker.topology
    logger.info(
        "workers: %d group(s) of %s, executor %s, %d rank(s)",
        len(plan.groups),
        topology,
        executor_backend(config),
        stage.parallel_config.world_size,
    )
    if not is_validated(topology, info.platform.device):
        logger.warning(
            "topology %s on %s has not been validated: no record shows it equal to one rank "
            "(allow_unvalidated_topology is set by %s)",
            topology,
            info.platform.device,
            config.provenance["stage.allow_unvalidated_topology"],
        )
    if info.device != "cpu":
        logger.info(
            "expert layers: %s; later steps: %s; VAE decoder in %s",
            info.expert_layer,
            "replayed from graphs" if plan.worker.use_graphs else "eager",
            plan.worker.vae_dtype,
        )
    if info.host_weight_bytes:
        logger.info(
            "offload: %.1f MiB of weights wait in host memory (%s)",
            info.host_weight_bytes / 2**20,
            " and ".join(
                name
                for name, is_on in (
                    ("decoder layers", plan.worker.stream_layers),
                    ("VAE decoder", plan.worker.vae_waits),
                )
                if is_on
            ),
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
