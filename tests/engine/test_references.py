"""Reference images as the model reads them, against the pictures of the reference's processors."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from golden_cases import GOLDEN, case_images, load_case
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kit.api import load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, GOLDEN_CHECKPOINT
from kit.engine.preprocess import Preprocessor
from kit.engine.references import patch_grid, pixel_hash, reference_shape, scale_reference
from kit.errors import InvalidRequestError, UnsupportedError
from kit.modelspec.config import PUBLISHED_CONFIG, ModelConfig, load_config_file, load_model_config
from kit.modelspec.vision import VisionConfig
from kit.request import GenerationRequest, RecordedImage, ReferenceImage, SamplingParams
from kit.tokenizer.buckets import nearest_bucket, resolution_buckets
from kit.tokenizer.template import ReferenceShape


def vision_of(config: ModelConfig) -> VisionConfig:
    assert isinstance(config.vision, VisionConfig)
    return config.vision


VISION = vision_of(load_model_config(GOLDEN_CHECKPOINT))
OFFICIAL_VISION = vision_of(load_config_file(PUBLISHED_CONFIG))
OFFICIAL_SIZES = resolution_buckets(1024, extended=True)


@pytest.fixture(scope="module")
def preprocessor() -> Preprocessor:
    return Preprocessor(GOLDEN_CHECKPOINT, load_config(GOLDEN_CHECKPOINT))


Pixels = npt.NDArray[np.uint8]


def noise(height: int, width: int) -> Pixels:
    generator = np.random.default_rng(height * width)
    return generator.integers(0, 256, (height, width, 3), np.uint8)


def picture(height: int, width: int, preprocessor: Preprocessor) -> ReferenceImage:
    return scale_reference(noise(height, width), preprocessor.sizes, VISION)


def saved(name: str) -> Pixels:
    with Image.open(GOLDEN / name) as image:
        return np.asarray(image)


def test_pictures_equal_the_references() -> None:
    """Every pixel: of the autoencoder's picture, and of the vision tower's patches."""
    for index, image in enumerate(case_images(load_case("ti2i_ref2_square").inputs)):
        for what, pixels in (("latent", image.latent_pixels), ("patches", image.patch_pixels)):
            np.testing.assert_array_equal(pixels, saved(f"ref_image_{index}_{what}.png"))
        assert image.source.sha256 == pixel_hash(saved(f"ref_image_{index}.png"))


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_the_grid_holds_the_most_patches(height: int, width: int) -> None:
    rows, columns = patch_grid(height, width, OFFICIAL_VISION)
    side, most = OFFICIAL_VISION.patch_size, OFFICIAL_VISION.max_num_patches
    assert rows * columns <= most
    # The grid of any scale that is clearly larger holds too many.
    scale = min(max(rows * side / height, columns * side / width), 100.0) * 1.001
    larger = math.prod(max(1, math.ceil(n * scale / side)) for n in (height, width))
    assert larger > most or scale >= 100.0


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [(1024, 1024, (32, 32)), (512, 1024, (22, 44)), (1080, 1920, (24, 42)), (1, 16, (7, 100))],
)
def test_grids_of_the_official_tower(height: int, width: int, grid: tuple[int, int]) -> None:
    assert patch_grid(height, width, OFFICIAL_VISION) == grid


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 40), (1000, 63), (300, 301), (64, 64)])
def test_any_shape_is_brought_to_its_bucket(height: int, width: int) -> None:
    image = scale_reference(noise(height, width), OFFICIAL_SIZES, OFFICIAL_VISION)
    bucket = nearest_bucket(OFFICIAL_SIZES, height, width)
    assert image.latent_pixels.shape == (bucket.height, bucket.width, 3)
    rows, columns = patch_grid(height, width, OFFICIAL_VISION)
    assert image.patch_pixels.shape == (16 * rows, 16 * columns, 3)
    shape = reference_shape(image, OFFICIAL_SIZES, OFFICIAL_VISION)
    assert shape == ReferenceShape(bucket, (rows, columns))


def test_what_stands_over_is_cut_on_both_sides() -> None:
    """A picture of stripes: the outer ones go, as much on the left as on the right."""
    pixels = np.zeros((64, 84, 3), np.uint8)
    pixels[:, :10, 0] = pixels[:, -10:, 1] = 255
    square = [size for size in OFFICIAL_SIZES if size.height == size.width]
    middle = scale_reference(pixels, square, OFFICIAL_VISION).latent_pixels[512]
    assert not middle[64:-64].any()  # a filter reaches 48 pixels


def test_the_hash_is_of_the_picture_not_of_its_file(preprocessor: Preprocessor) -> None:
    def read(image: Pixels, image_format: str, **options: object) -> ReferenceImage:
        file = io.BytesIO()
        Image.fromarray(image).save(file, image_format, **options)
        return preprocessor.read_image(file, "image")

    image = noise(40, 60)
    one = read(image, "PNG", compress_level=0)
    assert one == read(image, "PNG", compress_level=9) == read(image, "WEBP", lossless=True)
    changed = image.copy()
    changed[-1, -1, -1] ^= 1
    assert one != read(changed, "PNG")


def request(images: tuple[ReferenceImage, ...], **changes: Any) -> GenerationRequest:
    sampling = SamplingParams(height=256, width=256, seed=1)
    return replace(GenerationRequest("make it blue", sampling, images=images), **changes)


def test_a_size_that_is_not_named_is_the_bucket_of_the_first_reference(
    preprocessor: Preprocessor,
) -> None:
    images = (picture(110, 220, preprocessor), picture(90, 90, preprocessor))
    prepared = preprocessor.prepare(request(images, sampling=SamplingParams(seed=1)))
    assert (prepared.sampling.height, prepared.sampling.width) == (176, 336)
    grids = [ref.latent_grid for ref in prepared.rows.layout.references]
    assert grids == [(11, 21), (16, 16)]
    assert preprocessor.prepare(request(images)).sampling.width == 256


def test_the_seed_of_the_references_is_the_requests_own_unless_another_is_named(
    preprocessor: Preprocessor,
) -> None:
    images = (picture(8, 8, preprocessor),)
    assert preprocessor.prepare(request(images)).sampling.reference_seed == 1
    named = preprocessor.prepare(request(images, reference_seed=0)).sampling
    assert (named.seed, named.reference_seed) == (1, 0)
    drawn = preprocessor.prepare(request(images, sampling=SamplingParams())).sampling
    assert drawn.reference_seed == drawn.seed
    assert preprocessor.prepare(request(())).sampling.reference_seed is None


@pytest.mark.parametrize("seed", [-1, 2**63, True, 2.0])
def test_a_reference_seed_has_the_range_of_a_seed(seed: Any, preprocessor: Preprocessor) -> None:
    with pytest.raises(InvalidRequestError, match="integer from 0 to") as caught:
        preprocessor.prepare(request((picture(8, 8, preprocessor),), reference_seed=seed))
    assert caught.value.param == "reference_seed"


def test_a_reference_seed_without_references_is_refused(preprocessor: Preprocessor) -> None:
    with pytest.raises(InvalidRequestError, match="there is no reference image") as caught:
        preprocessor.prepare(request((), reference_seed=7))
    assert caught.value.param == "reference_seed"


def test_more_than_three_are_refused(preprocessor: Preprocessor) -> None:
    with pytest.raises(InvalidRequestError, match="got 4 reference images, at most 3") as caught:
        preprocessor.prepare(request((picture(8, 8, preprocessor),) * 4))
    assert caught.value.param == "image"


def test_one_that_was_read_for_another_checkpoint_is_refused(preprocessor: Preprocessor) -> None:
    stranger = scale_reference(noise(8, 8), OFFICIAL_SIZES, OFFICIAL_VISION)
    with pytest.raises(InvalidRequestError, match="was read for another checkpoint"):
        preprocessor.prepare(request((stranger,)))


def test_a_checkpoint_takes_as_many_as_its_rows_have_room_for() -> None:
    shipped = Preprocessor(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT))
    assert shipped.max_references == 1
    image = picture(256, 256, shipped)
    assert shipped.prepare(request((image,))).rows.layout.references
    with pytest.raises(InvalidRequestError, match="got 2 reference images, at most 1 is taken"):
        shipped.prepare(request((image, image)))
    assert Preprocessor(GOLDEN_CHECKPOINT, load_config(GOLDEN_CHECKPOINT)).max_references == 3


def test_a_checkpoint_of_the_pretrain_template_refuses_them(
    preprocessor: Preprocessor, text_checkpoint: Path
) -> None:
    bare = Preprocessor(text_checkpoint, load_config(text_checkpoint))
    assert bare.reference_refusal is not None
    with pytest.raises(UnsupportedError, match="takes no reference images: ") as caught:
        bare.prepare(request((picture(8, 8, preprocessor),)))
    assert caught.value.param == "image"
    assert "sequence_template is 'pretrain'" in str(caught.value)
    with pytest.raises(UnsupportedError, match="takes no reference images: "):
        bare.read_image(io.BytesIO(b"is not looked at"), "image")


def test_a_distilled_checkpoint_without_a_vision_tower_says_so(distil_checkpoint: Path) -> None:
    bare = Preprocessor(distil_checkpoint, load_config(distil_checkpoint))
    assert bare.reference_refusal == "its files hold no vision_model.* and vision_aligner.*"


def test_a_reference_is_told_by_all_that_the_model_sees_of_it() -> None:
    def reference(latents: npt.NDArray[np.uint8], patches: npt.NDArray[np.uint8]) -> ReferenceImage:
        return ReferenceImage(RecordedImage(4, 4, "the same file"), latents, patches)

    black, flat = np.zeros((4, 2, 3), np.uint8), np.zeros((2, 4, 3), np.uint8)
    grey = black.copy()
    grey[3, 1, 2] = 1
    digests = [
        reference(*pair).digest
        for pair in (
            (black, black),
            (black, flat),
            (flat, black),
            (grey, black),
            (black, grey),
            (np.zeros((5, 2, 3), np.uint8), np.zeros((3, 2, 3), np.uint8)),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert reference(black.copy(), np.asfortranarray(grey)).digest == digests[4]
