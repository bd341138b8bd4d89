"""From what the user asked to what really runs: defaults, ranges, token rows."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from pathlib import Path

from kit.config.deploy import DeployConfig
from kit.errors import InvalidRequestError
from kit.modelspec.config import load_generation_config, load_model_config
from kit.request import GenerationRequest, ResolvedSampling, Template
from kit.tokenizer.buckets import Bucket
from kit.tokenizer.layout import Layout, Rows
from kit.tokenizer.template import build_rows, supported_sizes
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
        """Read the checkpoint's small files; raises CheckpointError or UnsupportedError."""
        self.model = load_model_config(folder)
        self.generation = load_generation_config(folder)
        self.tokenizer = Tokenizer.from_folder(folder, self.model)
        self.sizes: tuple[Bucket, ...] = supported_sizes(self.tokenizer, self.model)
        self._defaults = config.stage.default_sampling_params

    @property
    def largest_bucket(self) -> Bucket:
        """The image with the most tokens that may be asked for."""
        return max(self.sizes, key=lambda size: size.height * size.width)

    def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Resolve and check a request; raises InvalidRequestError naming the field."""
        _integer("num_partial_images", request.num_partial_images, 0, MAX_PARTIAL_IMAGES)
        if request.timeout_s is not None:
            _number("timeout_s", request.timeout_s, 0.0, MAX_TIMEOUT_S, above=True)
        sampling = self._resolve(request)
        template, warnings = self._template(request)
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
        )
        return PreparedRequest(sampling, template, rows, warnings)

    def largest_size(self, layout: Layout, max_tokens: int) -> str | None:
        """The largest supported image whose rows stay within `max_tokens`, as WIDTHxHEIGHT."""
        factor = self.model.vae_downsample_factor
        budget = max_tokens - layout.prefix_len - layout.num_special
        fitting = [b for b in self.sizes if b.height * b.width // factor**2 <= budget]
        if not fitting:
            return None
        best = max(fitting, key=lambda b: b.height * b.width)
        return f"{best.width}x{best.height}"

    def _resolve(self, request: GenerationRequest) -> ResolvedSampling:
        asked, defaults, model = request.sampling, self._defaults, self.generation
        height, width = self._size(request)

        def value(name: str) -> object:
            """The request's value, else the deployment's, else the checkpoint's."""
            sources = (asked, defaults, model)
            return next((v for s in sources if (v := getattr(s, name, None)) is not None), None)

        seed = value("seed")
        return ResolvedSampling(
            height=height,
            width=width,
            num_inference_steps=_integer(
                "num_inference_steps", value("num_inference_steps"), 1, MAX_STEPS
            ),
            guidance_scale=_number("guidance_scale", value("guidance_scale"), 0.0, MAX_GUIDANCE),
            flow_shift=_number("flow_shift", value("flow_shift"), MIN_FLOW_SHIFT, MAX_FLOW_SHIFT),
            # 31 bits: every client's integer type can hold and send back the seed it was told.
            seed=secrets.randbits(31) if seed is None else _integer("seed", seed, 0, MAX_SEED),
        )

    def _size(self, request: GenerationRequest) -> tuple[int, int]:
        """(height, width): both asked for, else the deployment's, else the checkpoint's square."""
        asked, defaults, base = request.sampling, self._defaults, self.model.image_base_size
        for source in (asked, defaults):
            height, width = source.height, source.width
            if height is None and width is None:
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
