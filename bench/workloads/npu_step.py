"""A later step at the published width on an NPU: paged against dense_legacy, two minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.cuda_model import MODES, NUM_ROWS, make_loops, published_config, random_model
from bench.cuda_timing import relative_error
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.attention.ascend.limits import PAGE_SIZE
from kit.errors import UnsupportedError
from kit.model.fused import expert_layer
from kit.model.transformer import HunyuanImage3
from kit.platforms.detect import open_platform, platform_name
from kit.tokenizer.layout import Layout
from kit.worker.runner import prepare_device

NUM_LAYERS = 4
PREFIX_LENGTHS = (100, 1000, 6000)
GRID = (64, 64)
NUM_COMPARED_STEPS = 3
ERROR_LIMIT = 1e-2
"""Of latents: rows and pages are read by two forms of one operator, in bfloat16."""


@dataclass(frozen=True)
class Seen:
    """What was measured on both sides."""

    error: float
    rows: dict[str, list[dict[str, float]]]


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare latents, then time steps in turn; raises UnsupportedError without an NPU."""
    if platform_name() != "npu":
        raise UnsupportedError("this workload needs an Ascend NPU; there is none here")
    platform = open_platform((0,))
    device = torch.device("npu", 0)
    prepare_device(device)
    model = random_model(published_config(NUM_LAYERS), device)
    seen = measure(model, PREFIX_LENGTHS, GRID, context.repeats, platform.synchronize)
    return record(context, model, seen)


def measure(
    model: HunyuanImage3,
    prefix_lengths: tuple[int, ...],
    grid: tuple[int, int],
    repeats: int,
    synchronize: Callable[[], None],
) -> Seen:
    """Run both modes over one model; the host's clock, the device waited for."""
    error = 0.0
    rows: dict[str, list[dict[str, float]]] = {side: [{} for _ in range(repeats)] for side in MODES}
    for prefix_len in prefix_lengths:
        layout = Layout(prefix_len, model.config.num_special, grid, tail_len=1)
        num_steps = NUM_COMPARED_STEPS + repeats
        loops = make_loops(
            model, layout, page_size=PAGE_SIZE, num_steps=num_steps, use_graphs=False
        )
        for _ in range(NUM_COMPARED_STEPS):
            for loop in loops.values():
                loop.step()
        wanted, given = (loop.latents for loop in loops.values())
        error = max(error, relative_error(given, wanted))
        for repeat in range(repeats):
            for side, loop in loops.items():
                synchronize()
                started = time.perf_counter()
                loop.step()
                synchronize()
                rows[side][repeat][f"step_{prefix_len}_s"] = time.perf_counter() - started
    return Seen(error, rows)


def record(context: Context, model: HunyuanImage3, seen: Seen) -> Record:
    """Make the record of what was measured."""
    columns = tuple(seen.rows["baseline"][0])
    return context.record(
        parameters={
            "num_layers": model.config.num_hidden_layers,
            "num_rows": NUM_ROWS,
            "grid": list(GRID),
            "prefix_lengths": list(PREFIX_LENGTHS),
            "page_size": PAGE_SIZE,
            "page_tables": "shuffled",
            "dtype": "bfloat16",
            "weights": "random",
            "compared_steps": NUM_COMPARED_STEPS,
            "expert_layer": expert_layer(model),
            "order": "baseline, candidate, alternating",
        },
        equality=EqualityCheck.of(
            compared=f"latents after {NUM_COMPARED_STEPS} steps, largest relative error",
            limit=ERROR_LIMIT,
            seen=seen.error,
        ),
        baseline=Measurement("dense_legacy, FLASH_ATTN, eager", tuple(seen.rows["baseline"])),
        candidate=Measurement("paged_scheduler, FLASH_ATTN, eager", tuple(seen.rows["candidate"])),
        ratios=pair_ratios(columns),
        paired=True,
    )
