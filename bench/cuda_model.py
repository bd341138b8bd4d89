"""The published model's width on a device: random weights, one synthetic request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.cuda_timing import Replay
from kit.attention.base import RequestKV
from kit.attention.registry import create_backend
from kit.config.deploy import KVMode
from kit.kv.allocation import KVAllocation
from kit.messages import RunRequest
from kit.model.fused import use_fused_kernels
from kit.model.loader import in_dtype
from kit.model.norm import RMSNorm
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import PUBLISHED_CONFIG, ModelConfig, parse_model_config
from kit.modelspec.footprint import num_pages
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.graphs import StepGraphs
from kit.request import ResolvedSampling
from kit.tokenizer.layout import Layout, Rows

MODES: Mapping[str, KVMode] = {"baseline": "dense_legacy", "candidate": "paged_scheduler"}
"""By the side of a record."""

CARD = torch.device("cuda", 0)
NUM_ROWS = 2
PUBLISHED_LAYERS = 32


def published_config(num_layers: int) -> ModelConfig:
    """Return the published shape with so many layers."""
    raw: dict[str, Any] = json.loads(PUBLISHED_CONFIG.read_text())
    return parse_model_config({**raw, "num_hidden_layers": num_layers})


def random_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> HunyuanImage3:
    """Make a denoiser; every matrix keeps the scale of what it multiplies."""
    with torch.device("meta"):
        model = HunyuanImage3(config)
    in_dtype(model, dtype)
    model.to_empty(device=device)
    for part in model.modules():
        for name, weight in part.named_parameters(recurse=False):
            if isinstance(part, RMSNorm | nn.GroupNorm):
                weight.fill_(1.0 if name == "weight" else 0.0)
            elif weight.dim() == 1:
                weight.zero_()
            else:
                fan_in = weight[0].numel() if weight.dim() == 4 else weight.shape[-1]
                weight.normal_(std=fan_in**-0.5)
    use_fused_kernels(model, device, dtype)
    return model


def open_kv(
    config: ModelConfig,
    kv_mode: KVMode,
    layout: Layout,
    page_size: int,
    name: str = "FLASH_ATTN",
    device: torch.device = CARD,
) -> tuple[RequestKV, KVAllocation | None]:
    """Make room for a request of two rows: shuffled pages or contiguous rows."""
    allocation, pages_per_row = None, num_pages(layout.kv_len, page_size)
    if kv_mode == "paged_scheduler":
        order = torch.randperm(NUM_ROWS * pages_per_row).tolist()
        tables = tuple(
            tuple(order[row * pages_per_row : (row + 1) * pages_per_row]) for row in range(NUM_ROWS)
        )
        allocation = KVAllocation("bench", 1, tables, layout.kv_len, page_size)
    backend = create_backend(
        device=device,
        kv_mode=kv_mode,
        name=name,
        model=config,
        dtype=torch.bfloat16,
        page_size=page_size if allocation else None,
        num_pages=NUM_ROWS * pages_per_row if allocation else 0,
        fixed_addresses=device.type == "cuda" and name == "FLASH_ATTN",
    )
    return backend.open(layout, NUM_ROWS, allocation), allocation


def make_loop(
    model: HunyuanImage3,
    kv_mode: KVMode,
    layout: Layout,
    *,
    page_size: int,
    num_steps: int,
    use_graphs: bool = True,
) -> DenoiseLoop:
    """Prepare a request of two rows, its later steps replayed from graphs or not."""
    kv, allocation = open_kv(model.config, kv_mode, layout, page_size, device=model.device)
    graphs = StepGraphs(model) if use_graphs else None
    return DenoiseLoop(model, kv, bench_run(layout, allocation, num_steps), None, graphs)


def make_loops(
    model: HunyuanImage3, layout: Layout, *, page_size: int, num_steps: int, use_graphs: bool = True
) -> dict[str, DenoiseLoop]:
    """Prepare the same request in both modes, by side."""
    return {
        side: make_loop(
            model, mode, layout, page_size=page_size, num_steps=num_steps, use_graphs=use_graphs
        )
        for side, mode in MODES.items()
    }


def bench_run(layout: Layout, allocation: KVAllocation | None, num_steps: int) -> RunRequest:
    """Make the request of two rows that every timing runs."""
    height, width = (16 * side for side in layout.grid)
    return RunRequest(
        "bench",
        Rows(layout, (tuple(range(1, layout.seq_len + 1)),) * NUM_ROWS),
        ResolvedSampling(height, width, num_steps, 5.0, 3.0, 1),
        allocation,
        None,
    )


def layer_flops(config: ModelConfig, layout: Layout) -> int:
    """Count the multiply-adds, as two operations each, of one decoder layer in a later step."""
    tokens = NUM_ROWS * (layout.num_special + layout.num_image)
    hidden, q_dim = config.hidden_size, config.num_attention_heads * config.attention_head_dim
    weights = hidden * (config.qkv_dim + q_dim) + hidden * config.num_experts[0]
    experts = config.moe_topk[0] + config.num_shared_expert[0]
    weights += 3 * hidden * config.moe_intermediate_size[0] * experts
    attention = 2 * NUM_ROWS * layout.num_image * layout.kv_len * q_dim
    return 2 * (tokens * weights + attention)


def fixed_call(model: HunyuanImage3, layout: Layout, num_rows: int) -> Callable[[], object]:
    """Return what a later step does beside its layers, on a card its replay: embed and predict."""
    device, config = model.device, model.config
    latents = torch.randn(1, config.vae.latent_channels, *layout.grid, device=device)
    wave = torch.randn(1, 256, device=device)

    def run() -> Tensor:
        target = model.embed_target(latents, wave, None, None)
        rows = target.expand(num_rows, -1, -1)
        return model.predict(rows[:, -layout.num_image :], wave, layout.grid)

    return Replay(run) if device.type == "cuda" else run


def whole_step(step_s: float, fixed_s: float, num_layers: int) -> float:
    """Return the seconds of a step of all published layers, from one of `num_layers`."""
    return fixed_s + (step_s - fixed_s) * PUBLISHED_LAYERS / num_layers
