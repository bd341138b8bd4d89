"""First steps of requests with a reference image on random weights, with pages shared or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.cuda_model import NUM_ROWS, random_model
from bench.cuda_timing import seconds_on
from kit.attention.paged import PagedKV
from kit.attention.registry import create_backend
from kit.config.deploy import PrefixLevel
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.kv.prefix import PrefixScope, prefix_keys
from kit.messages import RunRequest
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import num_pages
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.references import TokenBlock
from kit.request import ResolvedSampling
from kit.tokenizer.layout import NUM_BEFORE_TIMESTEP, Layout, ReferenceSpan, Rows

ALL_LEVELS: tuple[PrefixLevel, ...] = ("rows", "images", "requests")


@dataclass(frozen=True)
class Setting:
    """The model, and a row: system text, one reference image, the user's prompt, the target."""

    config: ModelConfig
    device: torch.device
    grid: tuple[int, int]
    num_system: int
    latent_grid: tuple[int, int]
    patch_grid: tuple[int, int]
    num_prompt: int
    page_size: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def layout(self) -> Layout:
        rows, columns = self.patch_grid
        timestep = self.num_system + NUM_BEFORE_TIMESTEP
        span = ReferenceSpan(timestep, self.latent_grid, self.patch_grid, rows * columns)
        prefix_len = span.end + 1 + self.num_prompt
        return Layout(prefix_len, self.config.num_special, self.grid, 1, (span,))

    def rows(self, prompt: int) -> Rows:
        """Return a request's rows, which differ in the prompt alone; so do requests."""
        layout, vocabulary = self.layout, self.config.vocab_size
        common = list(range(1, layout.prefix_len - self.num_prompt + 1))
        behind = [0] * (layout.seq_len - layout.prefix_len)
        texts = ([1000 * (prompt + 1) + at for at in range(self.num_prompt)], [0] * self.num_prompt)
        return Rows(
            layout, tuple(tuple(i % vocabulary for i in (*common, *t, *behind)) for t in texts)
        )


@dataclass(frozen=True)
class FirstStep:
    """What one first step took and left."""

    seconds: float
    num_tokens: int
    """Keys and values written, all rows together."""

    allocation: KVAllocation
    latents: Tensor
    """After the last step that was run."""


class PrefixBench:
    """A model, and one pool of pages with its manager."""

    def __init__(self, setting: Setting, num_requests: int) -> None:
        """The pool holds the pages of `num_requests` that share nothing."""
        self.setting, config, device = setting, setting.config, setting.device
        dtype = setting.dtype
        self.model = random_model(config, device, dtype)
        layout = setting.layout
        self.pages_of_one = NUM_ROWS * num_pages(layout.kv_len, setting.page_size)
        geometry = KVGeometry(
            config.num_hidden_layers,
            config.num_key_value_heads,
            config.attention_head_dim,
            dtype.itemsize,
            setting.page_size,
        )
        self.manager = KVCacheManager(geometry, num_requests * self.pages_of_one, NUM_ROWS)
        backend = create_backend(
            device=device,
            kv_mode="paged_scheduler",
            name="FLASH_ATTN",
            model=config,
            dtype=dtype,
            page_size=setting.page_size,
            num_pages=self.manager.pool.num_pages,
            fixed_addresses=device.type == "cuda",
        )
        assert isinstance(backend, PagedKV)
        self.backend = backend
        span = layout.references[0]
        self._blocks = tuple(
            TokenBlock(start, torch.randn(number, config.hidden_size, device=device, dtype=dtype))
            for start, number in (
                (span.latents.start, span.latents.end - span.latents.start),
                (span.patches.start, span.num_patch_tokens),
            )
        )
        self._count = 0

    def reserve(self, prompt: int, levels: Iterable[PrefixLevel]) -> KVAllocation:
        """Book the pages of a request."""
        setting = self.setting
        scope = PrefixScope("random", str(setting.dtype), setting.page_size, 1, frozenset(levels))
        keys = prefix_keys(scope, setting.rows(prompt), "instruct", pictures=("reference",))
        self._count += 1
        name = f"r{self._count}"
        allocation = self.manager.reserve(name, NUM_ROWS, setting.layout.kv_len, keys)
        assert allocation is not None, "the pool was made large enough"
        return allocation

    def first_step(
        self, prompt: int, levels: Iterable[PrefixLevel] = (), *, num_steps: int = 1
    ) -> FirstStep:
        """Time the first of `num_steps` steps, then publish the prefix; none shares without levels.

        The time is that of the transformer alone: nothing is encoded or decoded.
        """
        setting, levels = self.setting, tuple(levels)
        allocation = self.reserve(prompt, levels)
        h, w = (16 * side for side in setting.grid)
        sampling = ResolvedSampling(h, w, num_steps, 5.0, 3.0, 1, reference_seed=1)
        run = RunRequest("bench", setting.rows(prompt), sampling, allocation, None)
        kv = self.backend.open(setting.layout, NUM_ROWS, allocation)
        start = allocation.num_cached_tokens
        blocks = self._blocks if start < setting.layout.references[0].end else ()
        loop = DenoiseLoop(self.model, kv, run, None, references=blocks)
        counts: list[int] = []
        taken = seconds_on(setting.device, lambda: counts.append(loop.step()))
        while not loop.finished:
            loop.step()
        self.manager.release(allocation, publish=bool(levels))
        return FirstStep(taken, counts[0], allocation, loop.latents)

    def common_tokens(self, allocation: KVAllocation, row: int) -> list[Tensor]:
        """Copy the keys, then the values, of a row's tokens in common: [L, K, D] of each layer."""
        span = self.setting.layout.prefix_len - self.setting.num_prompt
        table = torch.tensor(allocation.page_tables[row], device=self.setting.device)
        store = self.backend.store
        return [pages[table].flatten(0, 1)[:span].clone() for pages in store.keys + store.values]
