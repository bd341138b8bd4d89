"""Before a card takes requests: run the largest one, and compare its peak with what is allowed."""

from __future__ import annotations

import numpy as np

from kit.config.deploy import DeployConfig, value_of
from kit.engine.preprocess import Preprocessor
from kit.errors import ConfigError, WorkerError
from kit.executor.base import Executor
from kit.kv.manager import KVCacheManager
from kit.messages import RunRequest
from kit.modelspec.config import ModelConfig
from kit.modelspec.vision import VisionConfig
from kit.plan.rank import RequestShape, profiled_shape
from kit.platforms.detect import device_memory
from kit.request import RecordedImage, ReferenceImage, ResolvedSampling
from kit.telemetry.log import get_logger
from kit.tokenizer.buckets import Bucket
from kit.tokenizer.layout import NUM_BEFORE_TIMESTEP, Layout, ReferenceSpan, Rows

_GIB = 2**30
_REQUEST_ID = "start-profile"
_NUM_STEPS = 2
"""A first step and a later one."""

logger = get_logger("engine")


def profile_largest(
    executor: Executor,
    kv: KVCacheManager | None,
    preprocessor: Preprocessor,
    config: DeployConfig,
) -> None:
    """Run the largest request that a group admits, on cards; nothing on the CPU.

    Nobody else may use `kv`, the group's pages, meanwhile.

    It also compiles kernels and captures its graph, so the first request does not wait for them.
    Raises ConfigError with the numbers when it does not fit, whoever set the size of the pool.
    """
    if executor.info.device == "cpu":
        return
    largest = preprocessor.largest_bucket
    takes_references = preprocessor.reference_refusal is None
    request = largest_request(preprocessor.model, largest, kv, takes_references=takes_references)
    if request is None:
        logger.warning(
            "the page pool holds no request of the largest size, %s: nothing was profiled", largest
        )
        return
    pool = "kv_cache_memory_bytes" if config.stage.kv_cache_memory_bytes else "page pool"
    memory = device_memory(config.stage.device_ids, config.stage.parallel_config.world_size)
    allowed = memory.allowed_bytes(config.stage.gpu_memory_utilization)
    try:
        result = executor.run(request, lambda _: None, lambda: False)
    except WorkerError as error:
        raise _refusal(config, f"the largest request did not run: {error}") from error
    finally:
        if kv is not None and request.allocation is not None:
            kv.release(request.allocation)
    layout, peak = request.rows.layout, result.peak_memory_bytes
    logger.info(
        "profile: %s, %d rows of %d tokens: peak %.2f GiB, %s %.2f GiB, allowed %.2f of %.2f GiB",
        largest,
        request.rows.num_rows,
        layout.kv_len,
        peak / _GIB,
        pool,
        executor.info.pool_bytes / _GIB,
        allowed / _GIB,
        memory.total_bytes / _GIB,
    )
    if peak > allowed:
        raise _refusal(
            config,
            f"the largest request, {largest} with {request.rows.num_rows} rows, took {peak} bytes, "
            f"the page pool of {executor.info.pool_bytes} included, and {allowed} are allowed",
        )


def largest_request(
    model: ModelConfig, largest: Bucket, kv: KVCacheManager | None, *, takes_references: bool
) -> RunRequest | None:
    """Build the request with the most tokens; None if the pool holds not even a short prompt's."""
    shape = profiled_shape(model, largest, kv, takes_references=takes_references)
    if shape is None:
        return None
    grid = model.latent_grid(largest.height, largest.width)
    spans, references = _largest_reference(model, shape)
    layout = Layout(shape.prefix_len, model.num_special, grid, tail_len=1, references=spans)
    allocation = None
    if kv is not None:
        allocation = kv.reserve(_REQUEST_ID, shape.num_rows, layout.kv_len)
        assert allocation is not None, "the pool is empty and large enough"
    return RunRequest(
        _REQUEST_ID,
        Rows(layout, ((0,) * layout.seq_len,) * shape.num_rows),
        ResolvedSampling(
            largest.height, largest.width, _NUM_STEPS, 5.0, 3.0, 0, 0 if references else None
        ),
        allocation,
        None,
        references=references,
    )


def _largest_reference(
    model: ModelConfig, shape: RequestShape
) -> tuple[tuple[ReferenceSpan, ...], tuple[ReferenceImage, ...]]:
    """A black picture of the largest size at the head of the prefix; nothing if there is none."""
    if shape.reference is None:
        return (), ()
    vision, bucket = model.vision, shape.reference
    assert isinstance(vision, VisionConfig), "the checkpoint takes references"
    side = vision.patch_size
    span = ReferenceSpan(
        timestep=NUM_BEFORE_TIMESTEP,
        latent_grid=model.latent_grid(bucket.height, bucket.width),
        patch_grid=(1, vision.max_num_patches),
        num_patch_tokens=vision.max_num_patches,
    )
    picture = ReferenceImage(
        RecordedImage(bucket.height, bucket.width, ""),
        np.zeros((bucket.height, bucket.width, 3), np.uint8),
        np.zeros((side, vision.max_num_patches * side, 3), np.uint8),
    )
    return (span,), (picture,)


def _refusal(config: DeployConfig, reason: str) -> ConfigError:
    name = "kv_cache_memory_bytes"
    if config.stage.kv_cache_memory_bytes is None:
        name = "gpu_memory_utilization"
    dotted = f"stage.{name}"
    return ConfigError(
        name,
        reason,
        value=value_of(config, dotted),
        source=config.provenance[dotted],
        remedy="lower kv_cache_memory_bytes, raise gpu_memory_utilization, or use more ranks",
    )
