"""Memory of a card at real width: predicted peaks against measured ones, at sizes that change."""

from __future__ import annotations

import gc

import torch

from bench.cuda_model import NUM_ROWS, make_loop, published_config, random_model
from bench.cuda_timing import the_card
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.workloads.cuda_vae import random_decoder
from kit.model.fused import use_fused_kernels
from kit.modelspec.footprint import activation_bytes, kv_token_bytes, row_bytes, weight_bytes
from kit.tokenizer.layout import Layout

NUM_LAYERS = 4
PAGE_SIZE = 176
PREFIX_LEN = 1000
GRIDS = ((32, 32), (64, 64), (40, 100), (128, 128), (64, 64))
LIMIT = 0.1
"""Largest distance of measured / predicted from 1."""


@torch.inference_mode()
def run(context: Context) -> Record:
    """Denoise and decode every size, `context.repeats` rounds; compare peaks and memory at rest."""
    device = the_card()
    config = published_config(NUM_LAYERS)
    model = random_model(config, device)
    decoder = random_decoder(config.vae, device).half()
    use_fused_kernels(decoder, device, torch.float16)
    weights = weight_bytes(config, 2, vae_dtype_bytes=2)
    loaded = torch.cuda.memory_allocated()
    rows: dict[str, list[dict[str, float]]] = {"baseline": [], "candidate": []}
    at_rest: list[int] = []
    for _ in range(context.repeats):
        for grid in GRIDS:
            layout = Layout(PREFIX_LEN, config.num_special, grid, tail_len=1)
            torch.cuda.reset_peak_memory_stats()
            loop = make_loop(
                model,
                "paged_scheduler",
                layout,
                page_size=PAGE_SIZE,
                num_steps=2,
                use_graphs=False,
            )
            while not loop.finished:
                loop.step()
            denoise = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            decoder(loop.latents)
            decode = torch.cuda.max_memory_allocated()
            del loop
            gc.collect()
            at_rest.append(torch.cuda.memory_allocated())
            pool = NUM_ROWS * row_bytes(layout.kv_len, kv_token_bytes(config, 2), PAGE_SIZE)
            working = activation_bytes(
                config,
                height=16 * grid[0],
                width=16 * grid[1],
                prefix_len=PREFIX_LEN,
                num_rows=NUM_ROWS,
                dtype_bytes=2,
                fused=True,
                vae_dtype_bytes=2,
            )
            rows["baseline"].append(
                {
                    "peak_bytes": weights + pool + working.peak,
                    "denoise_bytes": weights + pool + working.denoise,
                    "decode_bytes": weights + pool + working.decode,
                    "working_denoise_bytes": working.denoise,
                    "working_decode_bytes": working.decode,
                    "weights_bytes": weights,
                    "rest_bytes": weights,
                    "image_tokens": layout.num_image,
                }
            )
            rows["candidate"].append(
                {
                    "peak_bytes": max(denoise, decode),
                    "denoise_bytes": denoise,
                    "decode_bytes": decode,
                    "working_denoise_bytes": denoise - loaded - pool,
                    "working_decode_bytes": decode - loaded - pool,
                    "weights_bytes": loaded,
                    "rest_bytes": at_rest[-1],
                    "image_tokens": layout.num_image,
                }
            )
    off = max(
        abs(seen[column] / predicted[column] - 1)
        for seen, predicted in zip(rows["candidate"], rows["baseline"], strict=True)
        for column in ("denoise_bytes", "decode_bytes", "weights_bytes")
    )
    growth = max(at_rest[len(GRIDS) :], default=at_rest[-1]) - min(at_rest[len(GRIDS) - 1 :])
    return context.record(
        parameters={
            "num_layers": NUM_LAYERS,
            "num_rows": NUM_ROWS,
            "prefix_len": PREFIX_LEN,
            "grids": [list(grid) for grid in GRIDS],
            "page_size": PAGE_SIZE,
            "dtype": "bfloat16, the VAE decoder in float16",
            "weights": "random",
            "steps": 2,
        },
        equality=EqualityCheck.of(
            compared="measured / predicted peak of denoising, decoding and weights, largest "
            "distance from 1",
            limit=LIMIT,
            seen=off,
        ),
        baseline=Measurement("predicted by kit.modelspec.footprint", tuple(rows["baseline"])),
        candidate=Measurement("measured by torch's allocator", tuple(rows["candidate"])),
        paired=True,
        ratios={
            name: (f"candidate.{name}_bytes", f"baseline.{name}_bytes")
            for name in ("peak", "denoise", "decode", "working_denoise", "working_decode")
        },
        findings={"growth_at_rest_bytes": growth},
    )
