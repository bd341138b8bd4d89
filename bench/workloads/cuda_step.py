"""A later step at the published width on a card: paged against dense_legacy, both replayed."""

from __future__ import annotations

import statistics

import torch
from pydantic import JsonValue

from bench.cuda_model import (
    MODES,
    NUM_ROWS,
    PUBLISHED_LAYERS,
    fixed_call,
    layer_flops,
    make_loops,
    published_config,
    random_model,
    whole_step,
)
from bench.cuda_timing import matmul_flops, seconds, the_card, warm_up
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.tokenizer.layout import Layout

NUM_LAYERS = 8
PREFIX_LENGTHS = (100, 1000, 6000)
GRID = (64, 64)
PAGE_SIZE = 176
NUM_COMPARED_STEPS = 20


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare latents over 20 steps, then time steps in turn."""
    device = the_card()
    config = published_config(NUM_LAYERS)
    model = random_model(config, device)
    ceiling = matmul_flops(device)
    ceiling()
    difference = 0.0
    rows: dict[str, list[dict[str, float]]] = {
        side: [{} for _ in range(context.repeats)] for side in MODES
    }
    flops: dict[str, JsonValue] = {}
    findings: dict[str, float] = {}
    for prefix_len in PREFIX_LENGTHS:
        layout = Layout(prefix_len, config.num_special, GRID, tail_len=1)
        flops[str(prefix_len)] = layer_flops(config, layout)
        num_steps = NUM_COMPARED_STEPS + context.repeats
        loops = make_loops(model, layout, page_size=PAGE_SIZE, num_steps=num_steps)
        for _ in range(NUM_COMPARED_STEPS):
            for loop in loops.values():
                loop.step()
            a, b = (loop.latents for loop in loops.values())
            difference = max(difference, float((a - b).abs().max()))
            assert bool(torch.isfinite(a).all()), "random weights keep the latents finite"
        beside = fixed_call(model, layout, NUM_ROWS)
        warm_up(ceiling)
        shares = []
        for repeat in range(context.repeats):
            for side, loop in loops.items():
                row = rows[side][repeat]
                peak = row[f"matmul_flops_{prefix_len}"] = ceiling()
                step = row[f"step_{prefix_len}_s"] = seconds(loop.step)
                fixed = row[f"fixed_{prefix_len}_s"] = seconds(beside)
                whole = whole_step(step, fixed, NUM_LAYERS)
                row[f"step_of_32_layers_{prefix_len}_s"] = whole
                if side == "candidate":
                    shares.append(PUBLISHED_LAYERS * layer_flops(config, layout) / whole / peak)
        findings[f"share_of_matmul_ceiling_{prefix_len}"] = statistics.median(shares)
        del loops, beside, loop, a, b
    columns = tuple(
        f"{part}_{p}_s" for part in ("step", "step_of_32_layers") for p in PREFIX_LENGTHS
    )
    return context.record(
        parameters={
            "num_layers": NUM_LAYERS,
            "num_rows": 2,
            "grid": list(GRID),
            "prefix_lengths": list(PREFIX_LENGTHS),
            "page_size": PAGE_SIZE,
            "page_tables": "shuffled",
            "dtype": "bfloat16",
            "weights": "random",
            "compared_steps": NUM_COMPARED_STEPS,
            "step_of_32_layers": "fixed + (step - fixed) * 32 / layers; fixed is what a step does "
            "beside its layers",
            "share_of_matmul_ceiling": "operations of 32 layers over step_of_32_layers, paged",
            "flops_of_a_layer": flops,
            "order": "baseline, candidate, alternating",
        },
        equality=EqualityCheck.of(
            compared="latents of 20 steps at every prefix length, largest absolute difference",
            limit=0,
            seen=difference,
        ),
        baseline=Measurement("dense_legacy, FLASH_ATTN, graphs", tuple(rows["baseline"])),
        candidate=Measurement("paged_scheduler, FLASH_ATTN, graphs", tuple(rows["candidate"])),
        ratios=pair_ratios(columns),
        paired=True,
        findings=findings,
    )
