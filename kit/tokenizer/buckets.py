"""The image sizes a checkpoint was trained on, each with its aspect-ratio token."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kit.errors import CheckpointError, InvalidRequestError
from kit.modelspec.config import ModelConfig

NUM_BASE_BUCKETS = 33
EXTRA_SIZES_HW = ((1024, 768), (1280, 720), (768, 1024), (720, 1280))
"""Fixed sizes of the extended group; they do not scale with the base size."""

_ALIGN = 16
_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Bucket:
    """One supported image size, in pixels."""

    height: int
    width: int
    ratio_index: int
    """k of the token `<img_ratio_k>`: the place in the official group, never in a filtered list."""

    @property
    def ratio(self) -> float:
        return self.height / self.width

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def resolution_buckets(base_size: int, *, extended: bool) -> tuple[Bucket, ...]:
    """Return the buckets in the order of their ratio tokens.

    33 sizes from widest to tallest; `extended` appends those of the four fixed sizes whose ratio
    is new. From the square, one side grows by base/16 up to 2*base while the other shrinks as
    fast down to base/2 (HunyuanImage-3.0 reference, `ResolutionGroup`). Raises CheckpointError
    for a base size that the rule does not cover.
    """
    if base_size % _ALIGN or base_size < _ALIGN**2:
        raise CheckpointError(
            f"config.json image_base_size: got {base_size}, expected a multiple of {_ALIGN} "
            f"of at least {_ALIGN**2}"
        )
    step = base_size // 16
    tall = [(base_size, base_size)]
    while tall[-1] != (2 * base_size, base_size // 2):
        height, width = tall[-1]
        tall.append((min(height + step, 2 * base_size), max(width - step, base_size // 2)))
    aligned = [(h // _ALIGN * _ALIGN, w // _ALIGN * _ALIGN) for h, w in tall]
    sizes = sorted(aligned + [(h, w) for w, h in aligned[1:]], key=lambda size: size[0] / size[1])
    if extended:
        ratios = {h / w for h, w in sizes}
        sizes += [(h, w) for h, w in EXTRA_SIZES_HW if h / w not in ratios]
    return tuple(Bucket(h, w, index) for index, (h, w) in enumerate(sizes))


def nearest_bucket(buckets: Sequence[Bucket], height: int, width: int) -> Bucket:
    """Return the bucket with the nearest height/width ratio, the first of equals.

    Only the ratio counts (HunyuanImage-3.0 reference, `get_target_size`), so 512x512 finds
    1024x1024. `height` and `width` are positive, `buckets` is not empty.
    """
    wanted = height / width
    return min(buckets, key=lambda bucket: abs(bucket.ratio - wanted))


def fitting_sizes(buckets: Sequence[Bucket], model: ModelConfig) -> tuple[Bucket, ...]:
    """Return the buckets whose shortest row fits the model's positions.

    Raises CheckpointError if there is none.
    """
    # The row: <|startoftext|>, one token of prompt, <boi>, size, ratio, target, <eoi>.
    room = model.max_position_embeddings - 6 - model.num_special
    factor = model.vae_downsample_factor
    # Of buckets with one ratio, the official look-up only ever finds the first.
    found = {bucket.ratio: bucket for bucket in reversed(buckets)}
    sizes = tuple(
        bucket
        for bucket in buckets
        if bucket.height % factor == bucket.width % factor == 0
        and math.prod(model.latent_grid(bucket.height, bucket.width)) <= room
        and found[bucket.ratio] == bucket
    )
    if not sizes:
        raise CheckpointError(
            f"config.json max_position_embeddings: {model.max_position_embeddings} positions "
            f"hold no image of image_base_size {model.image_base_size}"
        )
    return sizes


def largest_bucket(sizes: Sequence[Bucket]) -> Bucket:
    """Return the size with the most pixels, and so the most tokens."""
    return max(sizes, key=lambda size: size.height * size.width)


def largest_fitting(
    model: ModelConfig, sizes: Sequence[Bucket], prefix_len: int, max_tokens: int
) -> str | None:
    """Return the largest size (WIDTHxHEIGHT) whose row has at most `max_tokens`; None if none."""
    room = max_tokens - prefix_len
    fitting = [b for b in sizes if model.num_target_tokens(b.height, b.width) <= room]
    return str(largest_bucket(fitting)) if fitting else None


def parse_size(text: str) -> tuple[int, int]:
    """Turn "WIDTHxHEIGHT" into (width, height) in pixels.

    Raises InvalidRequestError (param `size`); whether the size is supported is not looked at.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequestError(
            f"size: expected WIDTHxHEIGHT in pixels, such as 1024x768, got {text[:40]!r}",
            param="size",
        )
    return int(match[1]), int(match[2])
