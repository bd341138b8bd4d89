"""From what the user asked to what really runs: defaults, ranges, token rows."""

from __future__ import annotations

import math
import secrets
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from kit.config.deploy import DeployConfig, shown
from kit.engine.reference_files import DEFAULT_LIMITS, FileLimits, decode_image
from kit.engine.references import reference_shape, scale_reference
from kit.errors import ConfigError, InvalidRequestError, UnsupportedError
from kit.modelspec.config import load_generation_config, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.vision import VisionConfig
from kit.request import GenerationRequest, ReferenceImage, ResolvedSampling, Template
from kit.tokenizer.buckets import Bucket, largest_bucket, nearest_bucket
from kit.tokenizer.layout import Rows
from kit.tokenizer.references import max_references, reference_refusal
from kit.tokenizer.template import ReferenceShape, build_rows, supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

MAX_STEPS = 1000
MAX_GUIDANCE = 100.0
MIN_FLOW_SHIFT = 0.01
"""Near 0 the schedule divides by zero: shift * s / (1 + (shift - 1) * s) at s = 1."""

MAX_FLOW_SHIFT = 100.0
MAX_SEED = 2**63 - 1
MAX_PARTIAL_IMAGES = 3
MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True)
class PreparedRequest:
    """A request with every value known and its token rows built."""

    sampling: ResolvedSampling
    template: Template
    rows: Rows
    warnings: tuple[str, ...]


class Preprocessor:
    """Knows the checkpoint's tokenizer, sizes and defaults together with the deployment's."""

    def __init__(self, folder: Path, config: DeployConfig) -> None:
        """Read the checkpoint's small files.

        Raises CheckpointError or UnsupportedError, and ConfigError for a default size that the
        model does not have.
        """
        self.folder = folder
        # One at a time: a picture of 2^26 pixels takes up to a gigabyte while it is decoded.
        self._decoding = threading.Lock()
        self.model = load_model_config(folder)
        self.generation = load_generation_config(folder)
        self.tokenizer = Tokenizer.from_folder(folder, self.model)
        self.sizes: tuple[Bucket, ...] = supported_sizes(self.tokenizer, self.model)
        self._defaults = config.stage.default_sampling_params
        _check_default_size(config, self.sizes)

    @property
    def largest_bucket(self) -> Bucket:
        """The image with the most tokens that may be asked for."""
        return largest_bucket(self.sizes)

    @cached_property
    def reference_refusal(self) -> str | None:
        """Why the checkpoint takes no reference images; None if it does.

        Reads the headers of the weights; raises CheckpointError as CheckpointFiles.open does.
        """
        files = CheckpointFiles.open(self.folder)
        return reference_refusal(files, self.model, self.generation, self.tokenizer.special)

    @property
    def max_references(self) -> int:
        """Reference images that a request may have; 0 if the checkpoint takes none."""
        return 0 if self.reference_refusal else max_references(self.model, self.sizes)

    def check_references(self, number: int, field: str) -> VisionConfig:
        """Check that a request may have so many reference images, at least one.

        Returns what reads them. Raises InvalidRequestError naming the field, or UnsupportedError
        where the checkpoint takes none.
        """
        vision = self._vision(field)
        if number > (most := self.max_references):
            taken = "is" if most == 1 else "are"
            raise InvalidRequestError(
                f"{field}: got {number} reference images, at most {most} {taken} taken", param=field
            )
        return vision

    def read_image(
        self, file: BinaryIO, field: str, limits: FileLimits = DEFAULT_LIMITS
    ) -> ReferenceImage:
        """Read a reference image from a png, jpeg or webp file of unknown origin.

        `field` is what the caller knows it by. Raises InvalidRequestError naming it, or
        UnsupportedError, with nothing read, where the checkpoint takes none.
        """
        vision = self._vision(field)
        with self._decoding:
            return scale_reference(decode_image(file, field, limits), self.sizes, vision)

    def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Resolve and check a request; raises InvalidRequestError naming the field."""
        _integer("num_partial_images", request.num_partial_images, 0, MAX_PARTIAL_IMAGES)
        if request.timeout_s is not None:
            _number("timeout_s", request.timeout_s, 0.0, MAX_TIMEOUT_S, above=True)
        sampling = self._resolve(request)
        template, warnings = self._template(request)
        shapes = self._shapes(request.images)
        rows = build_rows(
            self.tokenizer,
            self.model,
            prompt=request.prompt,
            system_prompt=request.system_prompt,
            cot_text=request.cot_text,
            template=template,
            height=sampling.height,
            width=sampling.width,
            num_rows=num_rows(sampling.guidance_scale, cfg_distilled=self.model.cfg_distilled),
            drop_think=self.generation.drop_think,
            references=shapes,
        )
        return PreparedRequest(sampling, template, rows, warnings)

    def default(self, name: str) -> int | float | None:
        """What a request gets for a field of `sampling` that it leaves open, but for its size.

        The deployment's value, else the checkpoint's; None for a seed that is drawn.
        """
        deployed: int | float | None = getattr(self._defaults, name)
        return getattr(self.generation, name, None) if deployed is None else deployed

    def _resolve(self, request: GenerationRequest) -> ResolvedSampling:
        height, width = self._size(request)

        def value(name: str) -> object:
            asked = getattr(request.sampling, name)
            return self.default(name) if asked is None else asked

        seed = value("seed")
        # 31 bits: every client's integer type can hold and send back the seed it was told.
        seed = secrets.randbits(31) if seed is None else _integer("seed", seed, 0, MAX_SEED)
        return ResolvedSampling(
            height=height,
            width=width,
            num_inference_steps=_integer(
                "num_inference_steps", value("num_inference_steps"), 1, MAX_STEPS
            ),
            guidance_scale=_number("guidance_scale", value("guidance_scale"), 0.0, MAX_GUIDANCE),
            flow_shift=_number("flow_shift", value("flow_shift"), MIN_FLOW_SHIFT, MAX_FLOW_SHIFT),
            seed=seed,
            reference_seed=_reference_seed(request, seed),
        )

    def _vision(self, field: str) -> VisionConfig:
        """What reads reference images; raises UnsupportedError where nothing does."""
        if self.reference_refusal is not None:
            raise UnsupportedError(
                f"{field}: this checkpoint takes no reference images: {self.reference_refusal}; "
                f"use one that does, such as HunyuanImage-3.0-Instruct or the shipped one, or send "
                f"a prompt alone",
                param=field,
            )
        assert isinstance(self.model.vision, VisionConfig), "it takes references"
        return self.model.vision

    def _shapes(self, images: tuple[ReferenceImage, ...]) -> list[ReferenceShape]:
        if not images:
            return []
        vision = self.check_references(len(images), "image")
        return [reference_shape(image, self.sizes, vision) for image in images]

    def _size(self, request: GenerationRequest) -> tuple[int, int]:
        """(height, width): both asked for, else the bucket of the first reference, else the
        deployment's, else the checkpoint's square.
        """
        asked, defaults, base = request.sampling, self._defaults, self.model.image_base_size
        for source in (asked, defaults):
            height, width = source.height, source.width
            if height is None and width is None:
                if request.images:
                    height, width, _ = request.images[0].latent_pixels.shape
                    return height, width
                continue
            if height is None or width is None:
                missing = "height" if height is None else "width"
                raise InvalidRequestError(
                    f"{missing} is missing: height and width go together, got height={height!r}, "
                    f"width={width!r}",
                    param=missing,
                )
            limit = 1 << 20
            return _integer("height", height, 1, limit), _integer("width", width, 1, limit)
        return base, base

    def _template(self, request: GenerationRequest) -> tuple[Template, tuple[str, ...]]:
        wanted = request.template or self.generation.sequence_template
        warnings: tuple[str, ...] = ()
        kind = self.generation.use_system_prompt
        if request.system_prompt is None and kind.lower() != "none":
            warnings = (
                f"the checkpoint's generation_config.json asks for the system prompt {kind!r}, "
                f"whose text does not ship with this kit; the request ran without one, pass "
                f"system_prompt to set it",
            )
        if wanted == "pretrain":
            return "pretrain", warnings
        if wanted == "instruct":
            return "instruct", warnings
        raise InvalidRequestError(
            f"template: got {wanted!r}, supported are 'pretrain' and 'instruct'", param="template"
        )


def _check_default_size(config: DeployConfig, sizes: tuple[Bucket, ...]) -> None:
    """Refuse a default size at the start: every request that names none would be refused by it."""
    defaults, name = config.stage.default_sampling_params, "stage.default_sampling_params.width"
    if defaults.height is None or defaults.width is None:
        return
    if all((size.height, size.width) != (defaults.height, defaults.width) for size in sizes):
        nearest = nearest_bucket(sizes, defaults.height, defaults.width)
        raise ConfigError(
            shown(name),
            f"with height {defaults.height} is no size of this model",
            value=defaults.width,
            source=config.provenance[name],
            remedy=f"the nearest is width {nearest.width}, height {nearest.height}; all "
            f"(WIDTHxHEIGHT): {', '.join(map(str, sizes))}",
        )


def _reference_seed(request: GenerationRequest, seed: int) -> int | None:
    """The seed of the references' latents; raises InvalidRequestError for one without images."""
    asked = request.reference_seed
    if request.images:
        return seed if asked is None else _integer("reference_seed", asked, 0, MAX_SEED)
    if asked is not None:
        raise InvalidRequestError(
            f"reference_seed: got {asked!r:.40}, but there is no reference image to draw with it; "
            f"add one, or leave it out (the noise of the picture is drawn with seed)",
            param="reference_seed",
        )
    return None


def num_rows(guidance_scale: float, *, cfg_distilled: bool) -> int:
    """Rows that a request needs: two with guidance above 1, one without or when distilled."""
    return 1 if cfg_distilled or guidance_scale <= 1.0 else 2


def _integer(name: str, value: object, low: int, high: int) -> int:
    """Check a strict integer; true and 2.0 are none."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name}: got {value!r}, expected an integer from {low} to {high}", param=name
        )
    return value


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """Check a finite number in [low, high], or (low, high] with `above`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.inf  # an int may be too long
        if (low < number if above else low <= number) and number <= high:
            return number
    interval = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
    raise InvalidRequestError(f"{name}: got {value!r}, expected a number {interval}", param=name)
