"""A recorded picture made again: its request, its deployment, how far off the new one is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.config.digest import Value
from kit.errors import RecordError
from kit.request import (
    GenerationRequest,
    RecordedImage,
    ReferenceImage,
    ReplayRecord,
    SamplingParams,
)

# Settings about the machine and its load: a replay takes this machine's own.
_MACHINE_SETTINGS = frozenset(
    {
        "stage.stage_id",
        "stage.devices",
        "stage.max_num_seqs",
        "stage.max_queued_requests",
        "stage.gpu_memory_utilization",
        "stage.kv_cache_memory_bytes",
        "stage.execute_model_timeout_s",
        "stage.allow_unvalidated_topology",
        "stage.parallel_config.data_parallel_size",
        "stage.distributed_executor_backend",
    }
)
_SAMPLING_DEFAULTS = "stage.default_sampling_params."
_PARALLEL = "stage.parallel_config."
_LISTS = ("stage.prefix_caching_levels",)
"""Recorded with commas between their entries."""

_MAX_ROWS = "stage.diffusion_kv_max_rows_per_request"
# What the record also holds as it resolved, which is what counts.
_RESTATED = (
    "dtype",
    "stage.diffusion_kv_mode",
    "stage.diffusion_kv_page_size",
    "stage.diffusion_attention_backend",
)


@dataclass(frozen=True)
class Difference:
    """A recorded fact that is not so now; None: it is not known on that side."""

    name: str
    recorded: Value
    now: Value
    is_material: bool
    """Whether it can change a picture; False for settings about the machine and its load."""


@dataclass(frozen=True)
class PixelDifference:
    """How far two pictures of one size are apart."""

    num_pixels: int
    num_different: int
    """Pixels that differ in any channel."""

    max_difference: int
    """Largest difference of one channel, 0 to 255."""

    psnr_db: float
    """Peak signal-to-noise ratio, 10 log10(255^2 / mean squared error); inf for equal pictures."""


def differences(recorded: ReplayRecord, now: ReplayRecord) -> list[Difference]:
    """List every fact but the pixels that differs, in the order of the record."""
    before, after = _facts(recorded), _facts(now)
    return [
        Difference(name, before.get(name), after.get(name), _is_material(name))
        for name in before | after
        if (name in before, before.get(name)) != (name in after, after.get(name))
    ]


def compare_pixels(first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8]) -> PixelDifference:
    """Compare two uint8 [H, W, 3] pictures of one size."""
    assert first.shape == second.shape, "pictures of one request have one size"
    difference = np.abs(first.astype(np.int16) - second.astype(np.int16))
    mean_squared = float(np.mean(np.square(difference.astype(np.float64))))
    return PixelDifference(
        num_pixels=first.shape[0] * first.shape[1],
        num_different=int(np.count_nonzero(difference.any(axis=2))),
        max_difference=int(difference.max()),
        psnr_db=10 * math.log10(255**2 / mean_squared) if mean_squared else math.inf,
    )


def check_num_images(record: ReplayRecord, number: int) -> None:
    """Raise RecordError, which names the images, unless a record was made from so many."""
    recorded = record.request.images
    if number == len(recorded):
        return
    if not recorded:
        raise RecordError(
            f"--image: the picture was made without reference images, got {number}; leave it out"
        )
    named = ", ".join(
        f"{at}. {image.width}x{image.height} with the sha256 {image.sha256:.64} of its pixels"
        for at, image in enumerate(recorded, 1)
    )
    raise RecordError(
        f"--image: the picture was made from {len(recorded)} reference images, got {number}; give "
        f"each in this order: {named}"
    )


def to_request(record: ReplayRecord, images: tuple[ReferenceImage, ...] = ()) -> GenerationRequest:
    """Return the request that runs a recorded one again.

    A record names its reference images and does not hold them: `images` are those. Raises
    RecordError if they are others, fewer or more.
    """
    asked = record.request
    check_num_images(record, len(images))
    _check_images(asked.images, images)
    sampling = asdict(asked.sampling)
    return GenerationRequest(
        prompt=asked.prompt,
        reference_seed=sampling.pop("reference_seed"),
        sampling=SamplingParams(**sampling),
        system_prompt=asked.system_prompt,
        cot_text=asked.cot_text,
        template=asked.template,
        images=images,
    )


def to_stage_settings(record: ReplayRecord) -> dict[str, Value | list[str] | dict[str, Value]]:
    """Return the recorded settings of the stage that may change a picture, as an override.

    What the record's machine had (devices, memory, queue) is left out. KV mode and page size are
    those that ran.
    """
    stage: dict[str, Value | list[str] | dict[str, Value]] = {}
    parallel: dict[str, Value] = {}
    for dotted, value in record.deployment.settings.items():
        if dotted in _MACHINE_SETTINGS:
            continue
        if dotted.startswith(_PARALLEL):
            parallel[dotted.removeprefix(_PARALLEL)] = value
        elif dotted in _LISTS and isinstance(value, str):
            stage[dotted.removeprefix("stage.")] = value.split(",")
        elif dotted.startswith("stage.") and not dotted.startswith(_SAMPLING_DEFAULTS):
            stage[dotted.removeprefix("stage.")] = value
    return stage | {
        "parallel_config": parallel,
        "diffusion_kv_mode": record.deployment.kv_mode,
        "diffusion_kv_page_size": record.deployment.page_size,
    }


def _check_images(recorded: tuple[RecordedImage, ...], images: tuple[ReferenceImage, ...]) -> None:
    for at, (wanted, image) in enumerate(zip(recorded, images, strict=True), 1):
        given = image.source
        if given != wanted:
            raise RecordError(
                f"--image: reference image {at} is {given.width}x{given.height} with the sha256 "
                f"{given.sha256} of its pixels, the picture was made from one of "
                f"{wanted.width}x{wanted.height} with {wanted.sha256:.64}; the order counts"
            )


def _facts(record: ReplayRecord) -> dict[str, Value]:
    """Every fact but the pixels' by its dotted name; those that others restate are left out."""
    tree = asdict(record)
    del tree["image"], tree["deployment"]["config_hash"]
    for name in _RESTATED:
        tree["deployment"]["settings"].pop(name, None)
    return dict(_flatten(tree, ""))


def _is_material(name: str) -> bool:
    setting = name.removeprefix("deployment.settings.")
    return (
        setting not in _MACHINE_SETTINGS
        and setting != _MAX_ROWS
        and not setting.startswith(_SAMPLING_DEFAULTS)
    )


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Value]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, tuple):
            for at, item in enumerate(value):
                yield from _flatten(item, f"{prefix}{name}[{at}].")
        else:
            yield f"{prefix}{name}", value
