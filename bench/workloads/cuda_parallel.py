"""Tensor parallel over the cards here, all published layers: paged against dense_legacy."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from bench.cuda_model import MODES, NUM_ROWS, fixed_call
from bench.cuda_timing import Replay, matmul_flops, warm_up
from bench.rank_image import draw, same_decoder
from bench.rank_model import (
    PUBLISHED,
    Requests,
    Setting,
    error_against_one_rank,
    give_memory_back,
    random_shard,
    synchronize,
    together,
)
from bench.ranks import num_cards, run_on_ranks
from bench.records import EqualityCheck, Measurement, Record, Row, pair_ratios
from bench.registry import Context
from kit.model.shard import Shard
from kit.parallel.group import ALONE, Mesh
from kit.parallel.topology import Topology

NUM_COMPARED_STEPS = 4
NUM_PARITY_LAYERS = 2
STEPS_IN_A_ROW = 5
_EXCHANGES = 10


def run(context: Context) -> Record:
    """Share the published model among all cards here."""
    return measure_setting(context, PUBLISHED, num_cards())


def measure_setting(context: Context, setting: Setting, num_ranks: int) -> Record:
    """Compare latents, then time steps and images in turn; the same setting on every rank."""
    topology = Topology(tensor=num_ranks)
    ranks = run_on_ranks(topology, setting.device, on_rank, setting, context.repeats)
    leader = ranks[0]
    alone = statistics.median(rank["alone"]["layer_s"] for rank in ranks)
    shared = statistics.median(row["layer_s"] for row in leader["rows"]["candidate"])
    difference = max(rank["difference"] for rank in ranks)
    return context.record(
        parameters={
            "topology": str(topology),
            "num_layers": setting.num_layers,
            "num_layers_alone": setting.num_layers_alone,
            "num_rows": NUM_ROWS,
            "grid": list(setting.grid),
            "prefix_len": setting.prefix_len,
            "page_size": setting.page_size,
            "page_tables": "shuffled, the same on all ranks",
            "dtype": str(setting.dtype),
            "weights": "random, the same for one rank and for many",
            "compared_steps": NUM_COMPARED_STEPS,
            "image_steps": setting.num_image_steps,
            "decode": "all ranks together, in strips",
            "layer": "(step - fixed) / layers; fixed is what a step does beside its layers",
            "share_of_linear": "seconds of a layer on one card / (ranks x seconds on all), paged",
            "steps_in_a_row": STEPS_IN_A_ROW,
            "order": "steps of both, images of both; every second repeat in reverse; ranks begin "
            "together",
            "weight_bytes_of_a_rank": [rank["weight_bytes"] for rank in ranks],
            "peak_bytes_of_a_rank": [rank["peak_bytes"] for rank in ranks],
        },
        equality=EqualityCheck.of(
            compared="latents, paged against contiguous and rank against rank, largest absolute "
            "difference",
            limit=0,
            seen=difference,
        ),
        baseline=Measurement(f"dense_legacy, {topology}", _rows(leader, "baseline")),
        candidate=Measurement(f"paged_scheduler, {topology}", _rows(leader, "candidate")),
        ratios=pair_ratios(("step_s", "image_s")),
        paired=True,
        findings={
            "layer_alone_s": alone,
            "layer_shared_s": shared,
            "share_of_linear": alone / (num_ranks * shared),
            "sum_of_one_exchange_s": leader["exchange_s"],
            "error_against_one_rank": leader["error"],
            "create_weights_s": leader["create_s"],
            **{f"alone_{name}": leader["alone"][name] for name in ("step_s", "fixed_s")},
        },
    )


def _rows(rank: dict[str, dict[str, list[Row]]], side: str) -> tuple[Row, ...]:
    return tuple(rank["rows"][side])


@torch.inference_mode()
def on_rank(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> dict[str, object]:
    """Measure on one rank; only numbers come back."""
    if setting.is_card:
        ceiling = matmul_flops(device)
        warm_up(ceiling)
        del ceiling
    found: dict[str, object] = {
        "error": error_against_one_rank(mesh, device, setting, NUM_PARITY_LAYERS)
    }
    found["alone"] = _alone(mesh, device, setting, repeats)
    give_memory_back()
    if setting.is_card:
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    config = setting.config(setting.num_layers)
    model = random_shard(config, device, setting.dtype, Shard.of(mesh))
    synchronize(device)
    found["create_s"] = time.perf_counter() - started
    found["weight_bytes"] = sum(parameter.nbytes for parameter in model.parameters())
    found["exchange_s"] = _exchange(mesh, device, setting)
    requests = Requests(setting, model)
    found["difference"] = _difference(mesh, requests)
    decoder = same_decoder(config.vae, device, setting)
    beside = fixed_call(model, requests.layout, NUM_ROWS)
    num_steps = 2 + repeats * STEPS_IN_A_ROW
    loops = {side: requests.loop(mode, num_steps) for side, mode in MODES.items()}
    for loop in loops.values():
        loop.step()
        loop.step()
    draw(mesh, device, requests, "paged_scheduler", decoder)
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in MODES}
    for repeat in range(repeats):
        sides = list(MODES.items())[:: -1 if repeat % 2 else 1]
        for side, _ in sides:
            # Requests of a mode share pages or rows: a step is timed on whatever lies in them.
            fixed = together(mesh, device, beside)
            step = together(mesh, device, loops[side].step, STEPS_IN_A_ROW)
            layer = (step - fixed) / setting.num_layers
            rows[side].append({"step_s": step, "fixed_s": fixed, "layer_s": layer})
        for side, mode in sides:
            rows[side][-1].update(draw(mesh, device, requests, mode, decoder).times)
    found["rows"] = rows
    found["peak_bytes"] = torch.cuda.max_memory_allocated(device) if setting.is_card else 0
    return found


def _alone(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> dict[str, float]:
    """Time a model that fits on one device, on every rank for itself at the same time."""
    num_layers = setting.num_layers_alone
    model = random_shard(setting.config(num_layers), device, setting.dtype)
    requests = Requests(setting, model, ALONE, "paged_scheduler")
    loop = requests.loop("paged_scheduler", 2 + repeats)
    beside = fixed_call(model, requests.layout, NUM_ROWS)
    loop.step()
    loop.step()
    times = [
        (together(mesh, device, beside), together(mesh, device, loop.step)) for _ in range(repeats)
    ]
    return {
        "fixed_s": statistics.median(fixed for fixed, _ in times),
        "step_s": statistics.median(step for _, step in times),
        "layer_s": statistics.median((step - fixed) / num_layers for fixed, step in times),
    }


def _exchange(mesh: Mesh, device: torch.device, setting: Setting) -> float:
    """Return the seconds of the sum that every layer makes twice."""
    layout, config = setting.layout(), setting.config(1)
    shape = (NUM_ROWS, layout.target_len, config.hidden_size)
    x = torch.zeros(shape, dtype=setting.dtype, device=device)

    def run() -> Tensor:
        for _ in range(_EXCHANGES):
            mesh.tensor.sum_(x)
        return x

    call = Replay(run) if setting.is_card else run
    return min(together(mesh, device, call) for _ in range(3)) / _EXCHANGES


def _difference(mesh: Mesh, requests: Requests) -> float:
    """Return the largest difference of latents between modes, and between ranks."""
    loops = [requests.loop(mode, NUM_COMPARED_STEPS) for mode in MODES.values()]
    for _ in range(NUM_COMPARED_STEPS):
        for loop in loops:
            loop.step()
    dense, paged = (loop.latents for loop in loops)
    assert bool(torch.isfinite(paged).all()), "random weights keep the latents finite"
    ranks = mesh.everyone.gather(paged.clone(), 0)
    return max(float((dense - paged).abs().max()), float((ranks - paged).abs().max()))
