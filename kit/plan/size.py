"""One request on one rank: its keys and values, its peak, and whether it fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from kit.config.deploy import DeployConfig, value_of
from kit.errors import ConfigError, RequestError
from kit.kv.manager import KVCacheManager
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import (
    ActivationBytes,
    contiguous_bytes,
    longest_row,
    most_rows,
    own_rows,
)
from kit.plan.device import Device
from kit.plan.rank import (
    Precision,
    RankMemory,
    RequestShape,
    profiled_shape,
    split_of,
    working_bytes,
)
from kit.tokenizer.buckets import Bucket, largest_bucket, largest_fitting, parse_size
from kit.tokenizer.references import MAX_REFERENCES, num_reference_tokens

DEFAULT_PROMPT_TOKENS = 256
"""More than most prompts have, in a model that has room for so many."""


@dataclass(frozen=True)
class SizePlan:
    """One request of one image size on one rank."""

    size: str
    """WIDTHxHEIGHT."""

    prompt_tokens: int
    """Tokens of a row before the image's own: system text, prompt, template."""

    reference_tokens: int
    """Tokens of a row of all reference images, each of the largest size."""

    row_tokens: int
    """Tokens of a row whose keys and values are kept."""

    num_rows: int
    """CFG rows that the Scheduler books."""

    num_pages: int
    """Of the rows that the rank has; 0 in dense_legacy."""

    kv_bytes: int
    """Keys and values of the rank's rows: whole pages, or contiguous rows."""

    activations: ActivationBytes
    peak_bytes: int
    """Weights, pool or rows, and the largest of encoding references, denoising and decoding;
    without pages the rows of as many such requests as may take turns."""

    num_requests: int
    """Such requests that can hold keys and values at once."""

    refusal: str | None
    """Why it does not fit, with the number to change; None if it does."""


@dataclass(frozen=True)
class SizePlanner:
    """Plans requests of a deployment whose rank is decided."""

    spec: ModelConfig
    config: DeployConfig
    device: Device
    precision: Precision
    rank: RankMemory
    buckets: tuple[Bucket, ...]
    reference_refusal: str | None
    """Why the model takes no reference images; None if it does."""

    @property
    def allowed_bytes(self) -> int:
        return self.device.memory.allowed_bytes(self.config.stage.gpu_memory_utilization)

    def profiled(self) -> SizePlan | None:
        """Plan what a start runs first; raises ConfigError where it refuses to go on."""
        shape = profiled_shape(
            self.spec,
            largest_bucket(self.buckets),
            self.rank.kv,
            takes_references=self.reference_refusal is None,
        )
        if shape is None:
            return None
        plan = self._plan(shape, 0 if shape.reference is None else 1)
        if plan.refusal is not None:
            name = "kv_cache_memory_bytes"
            if self.config.stage.kv_cache_memory_bytes is None:
                name = "gpu_memory_utilization"
            raise ConfigError(
                name,
                f"a start runs the largest request first, {plan.size} with rows of "
                f"{plan.row_tokens} tokens: {plan.refusal}",
                value=value_of(self.config, f"stage.{name}"),
                source=self.config.provenance[f"stage.{name}"],
            )
        return plan

    def size(self, text: str, prompt_tokens: int | None, num_references: int) -> SizePlan:
        """Plan a request; raises ConfigError for what the model cannot take."""
        try:
            width, height = parse_size(text)
        except RequestError as error:
            raise ConfigError(
                "--size",
                "is no size",
                value=text,
                remedy="write WIDTHxHEIGHT, for example 1024x1024; MODEL stands before --size",
            ) from error
        if (height, width) not in {(bucket.height, bucket.width) for bucket in self.buckets}:
            raise ConfigError(
                "--size",
                "is no size of this model",
                value=text,
                remedy=f"use one of {', '.join(map(str, self.buckets))}",
            )
        reference = self._reference(num_references)
        references = self._reference_tokens(reference, num_references)
        target = self.spec.num_target_tokens(height, width)
        room = longest_row(self.spec) - target - references
        if room < 1:
            raise ConfigError(
                "--references",
                f"leaves no room for a prompt: a row has at most {longest_row(self.spec)} tokens, "
                f"the references take {references} and the image {target}",
                value=num_references,
                remedy="give fewer, or a smaller --size",
            )
        if prompt_tokens is None:
            prompt_tokens = min(DEFAULT_PROMPT_TOKENS, room)
        if not 1 <= prompt_tokens <= room:
            raise ConfigError(
                "--prompt-tokens",
                f"is out of range for {text}: a row has at most {longest_row(self.spec)} tokens",
                value=prompt_tokens,
                remedy=f"give 1 to {room}",
            )
        num_rows = most_rows(self.spec)
        if self.rank.kv is not None:
            num_rows = min(num_rows, self.rank.kv.max_rows_per_request)
        shape = RequestShape(width, height, references + prompt_tokens, num_rows, reference)
        return self._plan(shape, num_references)

    def _reference(self, num_references: int) -> Bucket | None:
        """The largest reference image of a request with so many."""
        problem = ""
        if not 0 <= num_references <= MAX_REFERENCES:
            problem = f"is out of range: a request has at most {MAX_REFERENCES}"
        elif num_references and self.reference_refusal is not None:
            problem = f"asks for what the model does not take: {self.reference_refusal}"
        if problem:
            raise ConfigError("--references", problem, value=num_references)
        return largest_bucket(self.buckets) if num_references else None

    def _reference_tokens(self, reference: Bucket | None, num_references: int) -> int:
        if reference is None:
            return 0
        return num_references * num_reference_tokens(self.spec, reference)

    def _plan(self, shape: RequestShape, num_references: int) -> SizePlan:
        rank, split = self.rank, split_of(self.config)
        target = self.spec.num_target_tokens(shape.height, shape.width)
        row_tokens = shape.prefix_len + target
        references = self._reference_tokens(shape.reference, num_references)
        activations = working_bytes(self.spec, shape, self.precision, self.config, split)
        stage = self.config.stage
        num_pages, refusal = 0, None
        num_requests = stage.max_num_seqs if stage.step_execution else 1
        if rank.kv is None:
            # Without pages a rank keeps the rows that it computes.
            rows = own_rows(shape.num_rows, split.cfg)
            kept, token_bytes = rank.kept_rows_bytes, rank.token_bytes
            kv_bytes = kept or contiguous_bytes(rows, row_tokens, token_bytes)
            held = kept or contiguous_bytes(num_requests * rows, row_tokens, token_bytes)
            peak = rank.weight_bytes + held + activations.peak
        else:
            num_pages = rank.kv.own_rows(shape.num_rows) * rank.kv.geometry.num_pages(row_tokens)
            kv_bytes = rank.kv.geometry.pool_bytes(num_pages)
            num_requests = rank.kv.pool.num_pages // num_pages
            peak = rank.at_rest_bytes + activations.peak
            refusal = self._pool_refusal(rank.kv, shape, row_tokens)
        if refusal is None and peak > self.allowed_bytes:
            refusal, num_requests = self._peak_refusal(peak, kv_bytes), 0
        return SizePlan(
            size=f"{shape.width}x{shape.height}",
            prompt_tokens=shape.prefix_len - references,
            reference_tokens=references,
            row_tokens=row_tokens,
            num_rows=shape.num_rows,
            num_pages=num_pages,
            kv_bytes=kv_bytes,
            activations=activations,
            peak_bytes=peak,
            num_requests=num_requests,
            refusal=refusal,
        )

    def _pool_refusal(self, kv: KVCacheManager, shape: RequestShape, row_tokens: int) -> str | None:
        largest_size = partial(largest_fitting, self.spec, self.buckets, shape.prefix_len)
        try:
            kv.check_fits(shape.num_rows, row_tokens, largest_size=largest_size)
        except RequestError as error:
            return str(error)
        return None

    def _peak_refusal(self, peak: int, kv_bytes: int) -> str:
        memory, allowed = self.device.memory, self.allowed_bytes
        less_pool = self.rank.pool_bytes - (peak - allowed)
        remedies = []
        if less_pool >= kv_bytes > 0 and self.rank.kv is not None:
            remedies.append(f"set kv_cache_memory_bytes to at most {less_pool}")
        if allowed < peak <= memory.total_bytes:
            utilization = math.ceil(100 * peak / memory.total_bytes) / 100
            remedies.append(f"raise gpu_memory_utilization to {utilization:g}")
        remedies.append("use more tensor-parallel ranks or devices with more memory")
        return f"its peak is {peak} bytes, and {allowed} are allowed; {', or '.join(remedies)}"
