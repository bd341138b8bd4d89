"""One rank's part of a model with random weights, and requests on it, on any kind of device."""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.cuda_model import MODES, NUM_ROWS, bench_run
from bench.cuda_timing import relative_error, seconds_on
from kit.attention.base import KVBackend
from kit.attention.registry import create_backend
from kit.config.deploy import KVMode
from kit.kv.allocation import KVAllocation
from kit.model.fused import use_fused_kernels
from kit.model.loader import in_dtype, official_parts
from kit.model.shard import WHOLE, Shard
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import PUBLISHED_CONFIG, ModelConfig, parse_model_config
from kit.modelspec.footprint import num_pages
from kit.modelspec.tensors import expected_tensors
from kit.parallel.group import ALONE, Mesh, RankGroup
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.graphs import StepGraphs
from kit.pipeline.rows import share_rows
from kit.tokenizer.layout import Layout


@dataclass(frozen=True)
class Setting:
    """What a measurement over ranks runs."""

    device: str
    """cuda, or cpu: small, in float32, by gloo, to try the measurement."""

    config_path: str
    num_layers: int
    """Of the model that the ranks share."""

    num_layers_alone: int
    """Of the model that fits on one device."""

    prefix_len: int
    grid: tuple[int, int]
    page_size: int
    num_image_steps: int = 8

    @property
    def is_card(self) -> bool:
        return self.device == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.is_card else torch.float32

    @property
    def vae_dtype(self) -> torch.dtype:
        return torch.float16 if self.is_card else torch.float32

    def config(self, num_layers: int) -> ModelConfig:
        """Return the shape with so many layers."""
        raw = json.loads(Path(self.config_path).read_text())
        return parse_model_config({**raw, "num_hidden_layers": num_layers})

    def layout(self) -> Layout:
        """Return the rows of the request that is run."""
        return Layout(self.prefix_len, self.config(1).num_special, self.grid, tail_len=1)


PUBLISHED = Setting(
    device="cuda",
    config_path=str(PUBLISHED_CONFIG),
    num_layers=32,
    num_layers_alone=24,
    prefix_len=100,
    grid=(64, 64),
    page_size=176,
)


def random_shard(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, shard: Shard = WHOLE
) -> HunyuanImage3:
    """Make a rank's part of a denoiser on its device: the same weights, whoever has which part.

    Every matrix keeps the scale of what it multiplies.
    """
    with torch.device("meta"):
        model = HunyuanImage3(config, shard)
    in_dtype(model, dtype)
    model.to_empty(device=device)
    shapes, generator = expected_tensors(config), torch.Generator(device)
    for name, view, cut in official_parts(model):
        shape = shapes[name].shape
        if len(shape) == 1:
            view.fill_(1.0 if name.endswith("weight") else 0.0)
            continue
        whole = torch.empty(shape, dtype=view.dtype, device=device)
        generator.manual_seed(zlib.crc32(name.encode()))
        whole.normal_(std=whole[0].numel() ** -0.5, generator=generator)
        for place, part in zip(cut.places(view), cut.of(whole), strict=True):
            place.copy_(part)
    use_fused_kernels(model, device, dtype)
    return model


class Requests:
    """Runs the request of a setting on one model, in both KV modes, from its own graphs."""

    def __init__(
        self, setting: Setting, model: HunyuanImage3, cfg: RankGroup = ALONE, *modes: KVMode
    ) -> None:
        """modes: those that will be run; both, unless they are named."""
        self.model, self._setting, self._cfg = model, setting, cfg
        self.layout, self.num_image_steps = setting.layout(), setting.num_image_steps
        self.num_rows = share_rows(NUM_ROWS, cfg).num_own
        self._graphs = StepGraphs(model) if setting.is_card else None
        self._pages = self.num_rows * num_pages(self.layout.kv_len, setting.page_size)
        self._backends: dict[KVMode, KVBackend] = {
            mode: self._backend(mode) for mode in modes or MODES.values()
        }

    @property
    def pool_bytes(self) -> int:
        """Bytes of this rank's pages."""
        return self._backends["paged_scheduler"].pool_bytes

    def loop(self, mode: KVMode, num_steps: int) -> DenoiseLoop:
        """Start a request of so many steps."""
        allocation = None
        if mode == "paged_scheduler":
            # The same shuffle on every rank: pages have one id on all.
            shuffle = torch.Generator().manual_seed(len(self.model.model.layers))
            order = torch.randperm(self._pages, generator=shuffle).view(self.num_rows, -1)
            tables = tuple(tuple(row) for row in order.tolist())
            allocation = KVAllocation(
                "bench", 1, tables, self.layout.kv_len, self._setting.page_size
            )
        kv = self._backends[mode].open(self.layout, self.num_rows, allocation)
        run = bench_run(self.layout, allocation, num_steps)
        return DenoiseLoop(self.model, kv, run, None, self._graphs, self._cfg)

    def _backend(self, mode: KVMode) -> KVBackend:
        paged = mode == "paged_scheduler"
        return create_backend(
            device=self.model.device,
            kv_mode=mode,
            name="FLASH_ATTN",
            model=self.model.config,
            dtype=self._setting.dtype,
            page_size=self._setting.page_size if paged else None,
            num_pages=self._pages if paged else 0,
            fixed_addresses=self._setting.is_card,
            head_ranks=self.model.shard.head_ranks,
            row_ranks=self._cfg.size,
        )


def error_against_one_rank(
    mesh: Mesh, device: torch.device, setting: Setting, num_layers: int
) -> float:
    """Return how far clean latents of a few layers are from those of one rank, relatively."""
    clean = []
    for shard, cfg in ((Shard(), ALONE), (Shard.of(mesh), mesh.cfg)):
        model = random_shard(setting.config(num_layers), device, setting.dtype, shard)
        loop = Requests(setting, model, cfg, "paged_scheduler").loop("paged_scheduler", 2)
        loop.step()
        loop.step()
        clean.append(loop.clean_estimate().clone())
        del model, loop
        give_memory_back()
    return relative_error(clean[1], clean[0])


def together(mesh: Mesh, device: torch.device, run: Callable[[], object], calls: int = 1) -> float:
    """Return the seconds of one of `calls` calls in a row, which all ranks begin together."""
    synchronize(device)
    mesh.any(False)
    return seconds_on(device, run, calls)


def synchronize(device: torch.device) -> None:
    """Wait for a card; the CPU has nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def give_memory_back() -> None:
    """Return what was dropped to the card."""
    gc.collect()
    torch.cuda.empty_cache()
