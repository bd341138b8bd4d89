"""What graphs save in later steps on a card: 512x512 at real width, and the shipped checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.cuda_model import make_loop, published_config, random_model
from bench.cuda_timing import seconds, the_card
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.model.loader import load_transformer
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import load_model_config
from kit.pipeline.denoise import DenoiseLoop
from kit.tokenizer.layout import Layout

NUM_LAYERS = 8
NUM_COMPARED_STEPS = 20


@dataclass(frozen=True)
class Case:
    name: str
    model: HunyuanImage3
    layout: Layout
    page_size: int

    def loop(self, *, use_graphs: bool, num_steps: int) -> DenoiseLoop:
        return make_loop(
            self.model,
            "paged_scheduler",
            self.layout,
            page_size=self.page_size,
            num_steps=num_steps,
            use_graphs=use_graphs,
        )


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare latents over 20 steps, then time eager and replayed steps in turn."""
    device = the_card()
    real = random_model(published_config(NUM_LAYERS), device)
    config = load_model_config(DEFAULT_CHECKPOINT)
    tiny = load_transformer(DEFAULT_CHECKPOINT, config, device=device, dtype=torch.bfloat16)
    cases = (
        Case("512", real, Layout(100, real.config.num_special, (32, 32), tail_len=1), 176),
        Case("tiny", tiny, Layout(30, config.num_special, (16, 16), tail_len=1), 192),
    )
    rows: dict[str, list[dict[str, float]]] = {
        side: [{} for _ in range(context.repeats)] for side in ("baseline", "candidate")
    }
    difference = 0.0
    num_steps = NUM_COMPARED_STEPS + context.repeats
    for case in cases:
        loops = {
            "baseline": case.loop(use_graphs=False, num_steps=num_steps),
            "candidate": case.loop(use_graphs=True, num_steps=num_steps),
        }
        for _ in range(NUM_COMPARED_STEPS):
            for loop in loops.values():
                loop.step()
            a, b = (loop.latents for loop in loops.values())
            difference = max(difference, float((a - b).abs().max()))
        for repeat in range(context.repeats):
            for side, loop in loops.items():
                rows[side][repeat][f"step_{case.name}_s"] = seconds(loop.step)
    return context.record(
        parameters={
            "512": f"{NUM_LAYERS} layers of the published width, random weights, 512x512, 2 rows",
            "tiny": f"{DEFAULT_CHECKPOINT.name}, 256x256, 2 rows",
            "dtype": "bfloat16",
            "compared_steps": NUM_COMPARED_STEPS,
            "order": "baseline, candidate, alternating",
        },
        equality=EqualityCheck.of(
            compared="latents of 20 steps, largest absolute difference",
            limit=0,
            seen=difference,
        ),
        baseline=Measurement("paged_scheduler, eager", tuple(rows["baseline"])),
        candidate=Measurement("paged_scheduler, replayed", tuple(rows["candidate"])),
        paired=True,
        ratios=pair_ratios(tuple(f"step_{case.name}_s" for case in cases)),
    )
