"""A plan: the memory and the capacity of a deployment, with nothing loaded.

Bytes are those of one rank. A plan of one rank on this machine decides as a start does; of several
ranks it is arithmetic over the published split, not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os.path import exists
from pathlib import Path
from typing import Any

from kit.attention.capabilities import resolve_kernel, resolve_page_size
from kit.config.deploy import DeployConfig
from kit.config.runnable import check_runnable
from kit.errors import CheckpointError, KitError, UnsupportedError
from kit.modelspec.config import (
    PUBLISHED_CONFIG,
    ModelConfig,
    load_config_file,
    load_generation_config,
)
from kit.modelspec.deployment import resolve_deployment
from kit.modelspec.files import INDEX_NAME, CheckpointFiles
from kit.modelspec.tensors import Part
from kit.modelspec.vision import NoVision
from kit.parallel.validated import check_validated
from kit.plan.device import Device, choose_device, section_platform
from kit.plan.placement import check_placement
from kit.plan.rank import Precision, choose_precision, rank_memory
from kit.plan.size import SizePlan, SizePlanner
from kit.tokenizer.buckets import Bucket, fitting_sizes, largest_bucket, resolution_buckets
from kit.tokenizer.references import reference_refusal
from kit.tokenizer.template import supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

PUBLISHED = "hunyuan_image3"
"""The name of the published 80B configuration, which ships with the kit."""

# The fixed sizes of the extended group are made for this base size.
_EXTENDED_BASE = 1024


@dataclass(frozen=True)
class Plan:
    """A deployment of a model; bytes are those of one rank."""

    model: str
    num_ranks: int
    topology: Mapping[str, int]
    """Sizes of parallel_config that multiply to the ranks."""

    device: str
    device_bytes: int
    allowed_bytes: int
    """Most that weights, keys and values and working memory may take together."""

    dtype: str
    vae_dtype: str
    kv_mode: str
    backend: str
    kernel: str | None
    """None where this build has none."""

    weights: Mapping[Part, int]
    """Those that are always on the device."""

    weight_bytes: int
    host_weight_bytes: int
    """Weights that wait in host memory."""

    token_bytes: int
    """Keys and values of one token in all layers."""

    page_size: int | None
    page_bytes: int | None
    num_pages: int
    pool_bytes: int
    kept_rows_bytes: int
    """Contiguous rows that stay for graphs, dense_legacy only."""

    load_peak_bytes: int
    """What the device holds at the end of loading: each tensor is copied to its place once."""

    mapped_bytes: int | None
    """The largest shard: while it is read, the host maps it beside that. None without files."""

    max_num_seqs: int
    profiled: SizePlan | None
    """What a start on an accelerator runs first, the largest request; None on the CPU, and where
    the pool holds none."""

    sizes: tuple[SizePlan, ...]
    start_refusal: str | None
    """Why this build does not start the deployment; None if it does."""

    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return all(size.refusal is None for size in self.sizes)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for machines."""
        return asdict(self) | {"fits": self.fits}


def plan_deployment(
    model: str | Path,
    deploy_config: str | Path | None = None,
    *,
    stage_overrides: str | Mapping[str, Any] | None = None,
    flags: Mapping[str, object] | None = None,
    sizes: Sequence[str] = (),
    prompt_tokens: int | None = None,
    references: int = 0,
    card: str | None = None,
    memory_bytes: int | None = None,
) -> Plan:
    """Plan a deployment; nothing is loaded, torch is not imported.

    model: a checkpoint folder, a config.json, or `hunyuan_image3`, the published 80B shape.
    deploy_config, stage_overrides, flags: as for load_config.
    sizes: WIDTHxHEIGHT of images; none means the model's square one.
    prompt_tokens: tokens of a row before the image's; None means 256, or what a row has room for.
    references: reference images of a request, each of the largest size. A config.json alone does
        not say whether there are weights that read them: they are counted if there is one.
    card, memory_bytes: the device of every rank, if not one of this machine.

    Raises ConfigError, with the number to change, for a deployment that cannot hold the model or
    its pool or that its devices do not run, CheckpointError or UnsupportedError for a model that is
    not one.
    """
    spec = load_config_file(_config_path(model))
    config = resolve_deployment(
        spec,
        deploy_config,
        stage_overrides=stage_overrides,
        flags=flags,
        platform=section_platform(card),
    )
    device = choose_device(config, card, memory_bytes)
    buckets = _buckets(model, spec)
    precision = choose_precision(config, device.platform)
    check_placement(config, device.platform, precision.dtype)
    refusal = _reference_refusal(model, spec, references)
    kernel, missing = _kernel(spec, config, device, precision)
    rank = rank_memory(
        spec,
        config,
        device.memory,
        precision,
        largest=largest_bucket(buckets),
        page_size=_page_size(spec, config, device),
        use_graphs=device.platform == "cuda" and not config.stage.enforce_eager,
        takes_references=refusal is None,
    )
    planner = SizePlanner(spec, config, device, precision, rank, buckets, refusal)
    profiled = planner.profiled() if device.platform != "cpu" else None
    asked = sizes or (f"{spec.image_base_size}x{spec.image_base_size}",)
    planned = tuple(planner.size(text, prompt_tokens, references) for text in asked)
    parallel, geometry = config.stage.parallel_config, rank.kv.geometry if rank.kv else None
    return Plan(
        model=str(model),
        num_ranks=parallel.world_size,
        topology={
            "tensor_parallel_size": parallel.tensor_parallel_size,
            "sequence_parallel_size": parallel.sequence_size,
            "cfg_parallel_size": parallel.cfg_parallel_size,
            "data_parallel_size": parallel.data_parallel_size,
        },
        device=device.name,
        device_bytes=device.memory.total_bytes,
        allowed_bytes=planner.allowed_bytes,
        dtype=precision.dtype,
        vae_dtype=precision.vae_dtype,
        kv_mode=config.stage.diffusion_kv_mode,
        backend=config.stage.diffusion_attention_backend,
        kernel=kernel,
        weights=dict(rank.weights),
        weight_bytes=rank.weight_bytes,
        host_weight_bytes=rank.host_weight_bytes,
        token_bytes=rank.token_bytes,
        page_size=geometry.page_size if geometry else None,
        page_bytes=geometry.page_bytes if geometry else None,
        num_pages=rank.kv.pool.num_pages if rank.kv else 0,
        pool_bytes=rank.pool_bytes,
        kept_rows_bytes=rank.kept_rows_bytes,
        load_peak_bytes=rank.at_rest_bytes,
        mapped_bytes=_largest_shard(Path(model)),
        max_num_seqs=config.stage.max_num_seqs,
        profiled=profiled,
        sizes=planned,
        start_refusal=_start_refusal(config, device) or missing,
        warnings=config.warnings,
    )


def _config_path(model: str | Path) -> Path:
    if str(model) == PUBLISHED and not exists(model):
        return PUBLISHED_CONFIG
    path = Path(model)
    if not exists(path):
        raise CheckpointError(
            f"MODEL: there is no file or folder {path}; name a checkpoint folder, a config.json, "
            f"the hub id of a fetched checkpoint, or {PUBLISHED} for the published shape"
        )
    return path if path.is_file() else path / "config.json"


def _has_weights(folder: Path) -> bool:
    return (folder / INDEX_NAME).is_file() or any(folder.glob("*.safetensors"))


def _reference_refusal(model: str | Path, spec: ModelConfig, references: int) -> str | None:
    folder = Path(model)
    if _has_weights(folder):
        special = Tokenizer.from_folder(folder, spec).special
        generation = load_generation_config(folder)
        return reference_refusal(CheckpointFiles.open(folder), spec, generation, special)
    if isinstance(spec.vision, NoVision):
        return spec.vision.reason
    return None if references else "no reference images were asked for"


def _largest_shard(folder: Path) -> int | None:
    if not _has_weights(folder):
        return None
    return max(CheckpointFiles.open(folder).shard_bytes.values())


def _buckets(model: str | Path, spec: ModelConfig) -> tuple[Bucket, ...]:
    """Sizes of the vocabulary beside the config; without one, those of the official group."""
    folder = Path(model)
    if (folder / "tokenizer.json").is_file():
        return supported_sizes(Tokenizer.from_folder(folder, spec), spec)
    extended = spec.image_base_size >= _EXTENDED_BASE
    return fitting_sizes(resolution_buckets(spec.image_base_size, extended=extended), spec)


def _kernel(
    spec: ModelConfig, config: DeployConfig, device: Device, precision: Precision
) -> tuple[str | None, str | None]:
    """Return the kernel's name, or why this build has none."""
    try:
        kernel = resolve_kernel(
            config.stage.diffusion_attention_backend,
            device.platform,
            config.stage.diffusion_kv_mode,
            dtype=precision.dtype,
            head_dim=spec.attention_head_dim,
            compute_capability=device.compute_capability,
            is_planned=device.is_planned,
        )
    except UnsupportedError as error:
        return None, str(error)
    return kernel, None


def _page_size(spec: ModelConfig, config: DeployConfig, device: Device) -> int | None:
    if not config.stage.is_paged:
        return None
    return resolve_page_size(
        config.stage.diffusion_attention_backend,
        device.platform,
        head_dim=spec.attention_head_dim,
        requested=config.stage.diffusion_kv_page_size,
        compute_capability=device.compute_capability,
        is_planned=device.is_planned,
    )


def _start_refusal(config: DeployConfig, device: Device) -> str | None:
    try:
        check_runnable(config)
        check_validated(config, device.platform)
    except KitError as error:
        return str(error)
    return None
