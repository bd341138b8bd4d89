"""A decoded picture to the two smaller ones that the model reads, and back to their shapes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from kit.errors import InvalidRequestError
from kit.modelspec.vision import VisionConfig
from kit.request import RecordedImage, ReferenceImage
from kit.tokenizer.buckets import Bucket, nearest_bucket
from kit.tokenizer.template import ReferenceShape

_SCALE_TOLERANCE = 1e-5


def scale_reference(
    pixels: npt.NDArray[np.uint8], sizes: Sequence[Bucket], vision: VisionConfig
) -> ReferenceImage:
    """Bring uint8 [H, W, 3] to the bucket next to its shape, and to patches of the vision tower."""
    height, width, _ = pixels.shape
    rows, columns = patch_grid(height, width, vision)
    picture = Image.fromarray(pixels)
    patches = picture.resize(
        (columns * vision.patch_size, rows * vision.patch_size), Image.Resampling.BILINEAR
    )
    return ReferenceImage(
        RecordedImage(height, width, pixel_hash(pixels)),
        np.asarray(_cover(picture, nearest_bucket(sizes, height, width))),
        np.asarray(patches),
    )


def reference_shape(
    image: ReferenceImage, sizes: Sequence[Bucket], vision: VisionConfig
) -> ReferenceShape:
    """Return what decides the tokens of a reference; raises InvalidRequestError for a stranger's.

    One that was read for another checkpoint has another shape.
    """
    height, width, _ = image.latent_pixels.shape
    grid = (
        image.patch_pixels.shape[0] // vision.patch_size,
        image.patch_pixels.shape[1] // vision.patch_size,
    )
    for bucket in sizes:
        if (bucket.height, bucket.width) == (height, width):
            if grid == patch_grid(image.source.height, image.source.width, vision):
                return ReferenceShape(bucket, grid)
            break
    raise InvalidRequestError(
        f"image: a reference image of {width}x{height} was read for another checkpoint; read it "
        f"with the engine that draws",
        param="image",
    )


def patch_grid(height: int, width: int, vision: VisionConfig) -> tuple[int, int]:
    """Return (rows, columns) of the patches of an image, as many as the tower takes at most.

    The image keeps its shape but for the patches at its ends. The scale is found by bisection,
    whose tolerance decides between neighbouring grids (SigLIP2 processor, NaFlex).
    """

    def grid(scale: float) -> tuple[int, int]:
        rows, columns = (
            max(1, math.ceil(side * scale / vision.patch_size)) for side in (height, width)
        )
        return rows, columns

    low, high = _SCALE_TOLERANCE / 10, 100.0
    while high - low >= _SCALE_TOLERANCE:
        middle = (low + high) / 2
        if math.prod(grid(middle)) <= vision.max_num_patches:
            low = middle
        else:
            high = middle
    return grid(low)


def pixel_hash(image: npt.NDArray[np.uint8]) -> str:
    """Return the sha256 (hex) of uint8 [H, W, 3] pixels, row by row."""
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()


def _cover(picture: Image.Image, bucket: Bucket) -> Image.Image:
    """Scale a picture until it covers the bucket, and cut both ends of what stands over."""
    width, height = bucket.width, round(bucket.width / picture.width * picture.height)
    if picture.height / picture.width < bucket.ratio:
        width, height = round(bucket.height / picture.height * picture.width), bucket.height
    scaled = picture.resize((width, height), Image.Resampling.LANCZOS)
    left, top = round((width - bucket.width) / 2), round((height - bucket.height) / 2)
    return scaled.crop((left, top, left + bucket.width, top + bucket.height))
