"""A step with its layers in host memory against one with all on the card, at published width."""

from __future__ import annotations

import statistics

import torch

from bench.cuda_baselines import sharing_weights
from bench.cuda_model import make_loop, published_config, random_model
from bench.cuda_timing import seconds, the_card
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.model.fused import use_fused_kernels
from kit.model.offload import stream_layers
from kit.tokenizer.layout import Layout

NUM_LAYERS = 4
PREFIX_LEN, GRID = 1000, (64, 64)
NUM_COMPARED_STEPS = 3
STEPS_IN_A_ROW = 3


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare latents over a few steps, then time steps in turn."""
    device = the_card()
    config = published_config(NUM_LAYERS)
    model = random_model(config, device)
    streamed = sharing_weights(model)
    streamed.model.layers.cpu()
    layers = stream_layers(streamed, device)
    use_fused_kernels(streamed, device, torch.bfloat16)
    layout = Layout(PREFIX_LEN, config.num_special, GRID, tail_len=1)
    num_steps = NUM_COMPARED_STEPS + STEPS_IN_A_ROW * context.repeats
    loops = {
        side: make_loop(
            form, "dense_legacy", layout, page_size=1, num_steps=num_steps, use_graphs=False
        )
        for side, form in (("baseline", model), ("candidate", streamed))
    }
    difference = 0.0
    for _ in range(NUM_COMPARED_STEPS):
        for loop in loops.values():
            loop.step()
        a, b = (loop.latents for loop in loops.values())
        difference = max(difference, float((a - b).abs().max()))
    waiting = layers.host_tensors
    copied = [tensor.to(device, non_blocking=True) for tensor in waiting[: len(waiting) // 4]]
    copied_bytes = sum(tensor.nbytes for tensor in copied)

    def copy() -> None:
        for there, tensor in zip(copied, waiting, strict=False):
            there.copy_(tensor, non_blocking=True)

    rows: dict[str, list[dict[str, float]]] = {side: [] for side in loops}
    for _ in range(context.repeats):
        for side, loop in loops.items():
            rows[side].append({"step_s": seconds(loop.step, STEPS_IN_A_ROW)})
        # The first layer of a pass to come is on its way: it must not share the bus with `copy`.
        torch.cuda.synchronize()
        rows["candidate"][-1]["copy_bytes_per_s"] = copied_bytes / seconds(copy)
    a_pass = sum(tensor.nbytes for tensor in waiting)
    # Its first layer was sent before the first pass began.
    moved = a_pass * (1 - 1 / (STEPS_IN_A_ROW * NUM_LAYERS))
    shares = [moved / row["step_s"] / row["copy_bytes_per_s"] for row in rows["candidate"]]
    return context.record(
        parameters={
            "num_layers": NUM_LAYERS,
            "prefix_len": PREFIX_LEN,
            "grid": list(GRID),
            "dtype": "bfloat16",
            "weights": "random",
            "bytes_of_a_pass": a_pass,
            "steps_in_a_row": STEPS_IN_A_ROW,
            "compared_steps": NUM_COMPARED_STEPS,
            "order": "baseline, candidate, copy, alternating",
        },
        equality=EqualityCheck.of(
            compared="latents of the first steps, largest absolute difference",
            limit=0,
            seen=difference,
        ),
        baseline=Measurement("all layers on the card, eager", tuple(rows["baseline"])),
        candidate=Measurement(
            "layers in locked host memory, two places on the card", tuple(rows["candidate"])
        ),
        paired=True,
        ratios=pair_ratios(("step_s",)),
        findings={"share_of_copy_ceiling": statistics.median(shares)},
    )
