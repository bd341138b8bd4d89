"""GET /v1/server/info: what really runs, who set it, and what is not supported."""

from __future__ import annotations

import platform

from fastapi import FastAPI
from pydantic import BaseModel, JsonValue

from kit.config.deploy import executor_backend
from kit.config.digest import setting_values
from kit.engine.engine import ImageEngine
from kit.engine.images import IMAGE_FORMATS
from kit.engine.preprocess import (
    MAX_FLOW_SHIFT,
    MAX_GUIDANCE,
    MAX_PARTIAL_IMAGES,
    MAX_SEED,
    MAX_STEPS,
    MAX_TIMEOUT_S,
)
from kit.errors import UnavailableError
from kit.server.fields import MAX_IMAGES, MAX_PROMPT_CHARS, MAX_TEXT_CHARS, NotSupported, markers
from kit.server.protocol import ChatCompletionBody, ImageEditForm
from kit.server.settings import ServerSettings
from kit.telemetry.environment import PACKAGES, package_versions
from kit.tokenizer.buckets import Bucket


class Setting(BaseModel):
    """A resolved setting."""

    value: JsonValue
    source: str
    """Who set it; a file is named without its folder."""


class ModelInfo(BaseModel):
    """Which weights are loaded."""

    architecture: str
    version: str | None
    fingerprint: str
    cfg_distilled: bool
    reference_refusal: str | None
    """Why it takes no reference images; null where it does."""

    weight_bytes: int
    load_time_s: float


class KVInfo(BaseModel):
    """How keys and values are kept, and what reads them."""

    mode: str
    backend: str
    kernel: str
    kernel_version: str
    page_size: int | None
    """Token slots; None in dense_legacy, where the next three are 0."""

    page_bytes: int
    num_pages: int
    pool_bytes: int
    """These three: on each rank."""


class GroupInfo(BaseModel):
    """A worker group: ranks that run one request at a time together."""

    index: int
    state: str
    """starting, ready, restarting, or down: lost too often and given up."""

    num_pages: int
    num_restarts: int
    fault: str | None
    """Why it was lost the last time."""


class WorkersInfo(BaseModel):
    """Where requests run."""

    executor: str
    topology: str
    """How the ranks of a group share a request, e.g. TP2+CFG2."""

    ranks_per_group: int
    groups: list[GroupInfo]


class Size(BaseModel):
    """A size that the model was trained on."""

    size: str
    width: int
    height: int
    target_tokens: int
    """Of one row: what every step writes anew."""


class Info(BaseModel):
    """The server as it runs."""

    name: str
    aliases: list[str]
    versions: dict[str, str]
    model: ModelInfo
    device: str
    dtype: str
    kv: KVInfo
    workers: WorkersInfo
    deployment: dict[str, Setting]
    sizes: list[Size]
    defaults: dict[str, JsonValue]
    """What a request gets where it says nothing; a seed of null is drawn."""

    limits: dict[str, JsonValue]
    output_formats: list[str]
    not_supported: dict[str, str]
    """Known fields that are refused, each with the reason; harmless values pass."""


def install_info(app: FastAPI, engine: ImageEngine, settings: ServerSettings) -> None:
    """Add GET /v1/server/info."""

    @app.get("/v1/server/info", tags=["operation"])
    async def info() -> Info:
        """What runs: resolved deployment with sources, kernel, pages, sizes, limits, versions."""
        status = engine.status()
        if not status.started or engine.facts is None:
            raise UnavailableError("the weights are loading; what runs is known when they have")
        worker, model = engine.info, engine.preprocessor.model
        return Info(
            name=settings.name,
            aliases=list(settings.aliases),
            versions=package_versions(PACKAGES) | {"python": platform.python_version()},
            model=ModelInfo(
                architecture=model.architecture,
                version=engine.facts.model.version,
                fingerprint=engine.facts.model.fingerprint,
                cfg_distilled=model.cfg_distilled,
                reference_refusal=engine.preprocessor.reference_refusal,
                weight_bytes=worker.weight_bytes,
                load_time_s=worker.load_time_s,
            ),
            device=worker.device,
            dtype=worker.dtype,
            kv=KVInfo(
                mode=engine.config.stage.diffusion_kv_mode,
                backend=worker.backend,
                kernel=worker.kernel,
                kernel_version=worker.kernel_version,
                page_size=worker.page_size,
                page_bytes=status.page_bytes,
                num_pages=status.groups[0].pages.total,
                pool_bytes=worker.pool_bytes,
            ),
            workers=WorkersInfo(
                executor=executor_backend(engine.config),
                topology=str(engine.topology),
                ranks_per_group=engine.topology.size,
                groups=[
                    GroupInfo(
                        index=group.index,
                        state=group.state,
                        num_pages=group.pages.total,
                        num_restarts=group.num_restarts,
                        fault=group.fault,
                    )
                    for group in status.groups
                ],
            ),
            deployment=_deployment(engine),
            sizes=[_size(engine, bucket) for bucket in engine.preprocessor.sizes],
            defaults=_defaults(engine, settings),
            limits=_limits(engine, settings),
            output_formats=list(IMAGE_FORMATS),
            not_supported=_not_supported(),
        )


def _size(engine: ImageEngine, bucket: Bucket) -> Size:
    return Size(
        size=str(bucket),
        width=bucket.width,
        height=bucket.height,
        target_tokens=engine.preprocessor.model.num_target_tokens(bucket.height, bucket.width),
    )


def _deployment(engine: ImageEngine) -> dict[str, Setting]:
    """Every setting by its dotted name, as `kit config` shows it."""
    config: dict[str, Setting] = {}
    for name, value in setting_values(engine.config).items():
        source = engine.config.provenance[name].rsplit("/", 1)[-1]
        config[name] = Setting(value=value, source=source)
    return config


def _defaults(engine: ImageEngine, settings: ServerSettings) -> dict[str, JsonValue]:
    preprocessor, deployed = engine.preprocessor, engine.config.stage.default_sampling_params
    square = preprocessor.model.image_base_size
    names = ("num_inference_steps", "guidance_scale", "flow_shift", "seed")
    return {
        "height": square if deployed.height is None else deployed.height,
        "width": square if deployed.width is None else deployed.width,
        **{name: preprocessor.default(name) for name in names},
        "template": preprocessor.generation.sequence_template,
        "timeout_s": settings.default_timeout_s,
        "output_format": IMAGE_FORMATS[0],
    }


def _limits(engine: ImageEngine, settings: ServerSettings) -> dict[str, JsonValue]:
    return {
        "n": MAX_IMAGES,
        "prompt_characters": MAX_PROMPT_CHARS,
        "text_characters": MAX_TEXT_CHARS,
        "reference_images": engine.preprocessor.max_references,
        "row_tokens": engine.preprocessor.model.max_position_embeddings,
        "num_inference_steps": MAX_STEPS,
        "guidance_scale": MAX_GUIDANCE,
        "flow_shift": MAX_FLOW_SHIFT,
        "seed": MAX_SEED,
        "partial_images": MAX_PARTIAL_IMAGES,
        "timeout_s": MAX_TIMEOUT_S,
        "max_queued_requests": engine.config.stage.max_queued_requests,
        "body_bytes": settings.max_body_bytes,
        "json_bytes": settings.max_json_bytes,
        "finished_jobs": settings.max_finished_jobs,
        "job_ttl_s": settings.job_ttl_s,
    }


def _not_supported() -> dict[str, str]:
    marked = markers(ChatCompletionBody) | markers(ImageEditForm)
    return {
        name: marker.reason for name, marker in marked.items() if isinstance(marker, NotSupported)
    }
