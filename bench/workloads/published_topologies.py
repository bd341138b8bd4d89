"""Whole requests on each published topology that the cards here hold: paged against dense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from pydantic import JsonValue

from bench import runner
from bench.cuda_model import NUM_ROWS
from bench.cuda_timing import matmul_flops, relative_error, warm_up
from bench.published import ALL_TOPOLOGIES
from bench.rank_image import draw, same_decoder
from bench.rank_memory import check_fits, predicted_bytes
from bench.rank_model import (
    MODES,
    PUBLISHED,
    Requests,
    Setting,
    error_against_one_rank,
    give_memory_back,
    random_shard,
    synchronize,
)
from bench.ranks import num_cards, run_on_ranks
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context, part_name
from kit.errors import UnsupportedError
from kit.model.shard import Shard
from kit.model.vae import VAEDecoder
from kit.parallel.group import Mesh
from kit.parallel.topology import Topology

PARTS = tuple(map(str, ALL_TOPOLOGIES))
"""What `--only` may name; each leaves a record of its own."""

NUM_PARITY_LAYERS = 2
ERROR_LIMITS: Mapping[torch.dtype, float] = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Clean latents of a few layers against one rank, relative error. Random weights: a token whose
experts are nearly as likely goes elsewhere by one rounding."""

WHOLE_ERROR_LIMITS: Mapping[torch.dtype, float] = {torch.float32: 1e-4, torch.bfloat16: 0.15}
"""Latents of all layers and steps against another topology. In bfloat16 roundings add up: TP2 of a
narrow model is 0.4 % off one rank with 2 layers and 2 % with 32; another picture is above 100 %."""

_START_LIMIT_S, _IMAGE_LIMIT_S = 180.0, 4.0

Latents = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A topology and what runs on it."""

    topology: Topology
    setting: Setting


@dataclass(frozen=True)
class RankResult:
    """What comes back from a rank: numbers only."""

    error_against_one_rank: float
    create_s: float
    start_s: float
    """From the rank's first line to its first request that counts."""

    weight_bytes: int
    pool_bytes: int
    device_bytes: int
    """Taken on the card at the end, by whatever: context, NCCL's buffers, torch's reserve."""

    latents: Latents
    """Of the first request, [1, C, h, w]."""

    rows: Mapping[str, Sequence[Mapping[str, float]]]
    """By side, one a request."""


OnRank = Callable[..., RankResult]


def run(context: Context) -> Iterator[Record]:
    """Yield a record for each topology that is named, or that the cards here hold."""
    count = num_cards()
    named = [t for t in ALL_TOPOLOGIES if str(t) in context.only]
    # Those of two cards are there to try it where there are no more.
    held = [t for t in ALL_TOPOLOGIES if min(count, 4) <= t.size <= count]
    yield from measure(context, [Case(t, _setting_of(t)) for t in named or held])


def measure(
    context: Context, cases: Sequence[Case], on_rank: OnRank | None = None
) -> Iterator[Record]:
    """Yield a record for each case; one that fails leaves the others alone.

    Latents are compared with those of the first case of as many layers, too, where it is another.
    """
    first: dict[int, tuple[str, Latents]] = {}
    for case in cases:
        work = partial(_measure_case, case=case, first=first, on_rank=on_rank or measure_rank)
        yield runner.run(context.of(str(case.topology)), work)


def record_of(
    context: Context,
    case: Case,
    ranks: Sequence[RankResult],
    against: tuple[str, float] | None,
    whole_s: float,
) -> Record:
    """Make the record of a case; `against`: another topology, and how far its latents are."""
    setting, topology = case.setting, case.topology
    rows = {side: _rows_of_all([rank.rows[side] for rank in ranks]) for side in MODES}
    every = [row for side in MODES for row in rows[side]]
    difference = max(row["difference"] for row in every)
    missing = sum(not row["is_picture"] for row in every)
    error = max(rank.error_against_one_rank for rank in ranks)
    whole_error = against[1] if against else 0.0
    limit, whole_limit = ERROR_LIMITS[setting.dtype], WHOLE_ERROR_LIMITS[setting.dtype]
    seen = difference + (error > limit) + (whole_error > whole_limit) + missing
    parameters: dict[str, JsonValue] = {
        "topology": str(topology),
        "num_layers": setting.num_layers,
        "num_parity_layers": NUM_PARITY_LAYERS,
        "num_rows": NUM_ROWS,
        "grid": list(setting.grid),
        "prefix_len": setting.prefix_len,
        "page_size": setting.page_size,
        "page_tables": "shuffled, the same on all ranks",
        "dtype": f"{setting.dtype}, the VAE decoder in {setting.vae_dtype}",
        "weights": "random, from a seed, the same whoever has which part",
        "steps": setting.num_image_steps,
        "seed": "one for all requests, so that all latents are to be equal",
        "decode": "all ranks together, in strips",
        "warm_up": 1,
        "order": "a request of each mode, every second pair in reverse; ranks begin together",
        "stores": "of both modes, all the time: captured steps hold their addresses",
        "error_limit": limit,
        "whole_error_limit": whole_limit,
        "predicted_bytes_of_a_rank": dict(predicted_bytes(setting, topology)),
        "weight_bytes_of_a_rank": [rank.weight_bytes for rank in ranks],
        "pool_bytes_of_a_rank": [rank.pool_bytes for rank in ranks],
    }
    return context.record(
        parameters=parameters,
        equality=EqualityCheck(
            compared="latents of every request of both modes and of all ranks, largest absolute "
            "difference; 1 is added for an error against one rank, or another topology, above its "
            "limit, and for each request without a picture",
            limit=0,
            seen=seen,
            equal=seen == 0,
        ),
        baseline=Measurement(f"{MODES['baseline']}, {topology}", rows["baseline"]),
        candidate=Measurement(f"{MODES['candidate']}, {topology}", rows["candidate"]),
        paired=True,
        ratios={"image": ("candidate.image_s", "baseline.image_s")},
        findings={
            "error_against_one_rank": error,
            **({f"whole_error_against_{part_name(against[0])}": against[1]} if against else {}),
            "pictures": float(len(every) - missing),
            "create_weights_s": max(rank.create_s for rank in ranks),
            "start_s": max(rank.start_s for rank in ranks),
            "device_bytes": float(max(rank.device_bytes for rank in ranks)),
            "whole_s": whole_s,
        },
    )


def _setting_of(topology: Topology) -> Setting:
    """Return the whole model, or the layers that fit where every rank has all weights."""
    if topology.tensor > 1:
        return PUBLISHED
    return replace(PUBLISHED, num_layers=PUBLISHED.num_layers_alone)


def _measure_case(
    context: Context, case: Case, first: dict[int, tuple[str, Latents]], on_rank: OnRank
) -> Record:
    setting, topology = case.setting, case.topology
    if setting.is_card and topology.size > num_cards():
        raise UnsupportedError(
            f"{topology} needs {topology.size} NVIDIA cards; {num_cards()} are here"
        )
    check_fits(setting, topology)
    limit_s = _START_LIMIT_S + len(MODES) * context.repeats * _IMAGE_LIMIT_S
    started = time.perf_counter()
    ranks: list[RankResult] = run_on_ranks(
        topology, setting.device, on_rank, setting, context.repeats, limit_s=limit_s
    )
    whole_s = time.perf_counter() - started
    against = None
    if setting.num_layers in first:
        name, latents = first[setting.num_layers]
        own = torch.from_numpy(ranks[0].latents)
        against = name, relative_error(own, torch.from_numpy(latents))
    else:
        first[setting.num_layers] = str(topology), ranks[0].latents
    return record_of(context, case, ranks, against, whole_s)


def _rows_of_all(
    ranks: Sequence[Sequence[Mapping[str, float]]],
) -> tuple[Mapping[str, float], ...]:
    """Join the rows of ranks: the leader's times, the worst of what all have seen."""
    return tuple(
        {
            **own[0],
            "is_picture": all(row["is_picture"] for row in own),
            "difference": max(row["difference"] for row in own),
            "peak_bytes": max(row["peak_bytes"] for row in own),
        }
        for own in zip(*ranks, strict=True)
    )


@torch.inference_mode()
def measure_rank(
    mesh: Mesh,
    device: torch.device,
    setting: Setting,
    repeats: int,
    make_requests: Callable[..., Requests] = Requests,
) -> RankResult:
    """Measure on one rank; `make_requests` takes what Requests does."""
    started = time.perf_counter()
    if setting.is_card:
        ceiling = matmul_flops(device)
        warm_up(ceiling)
        del ceiling
    error = error_against_one_rank(mesh, device, setting, NUM_PARITY_LAYERS)
    give_memory_back()
    creating = time.perf_counter()
    config = setting.config(setting.num_layers)
    model = random_shard(config, device, setting.dtype, Shard.of(mesh))
    decoder = same_decoder(config.vae, device, setting)
    synchronize(device)
    create_s = time.perf_counter() - creating
    modules = (model, decoder)
    weight_bytes = sum(weight.nbytes for module in modules for weight in module.parameters())
    requests = make_requests(setting, model, mesh.cfg)
    own = [draw(mesh, device, requests, mode, decoder).latents.clone() for mode in MODES.values()]
    # Of the leader in dense_legacy: another rank or mode that differs shows in its rows.
    wanted = mesh.everyone.gather(own[0], 0)[:1]
    start_s = time.perf_counter() - started
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in MODES}
    for repeat in range(repeats):
        for side in tuple(MODES)[:: -1 if repeat % 2 else 1]:
            rows[side].append(_row(mesh, device, requests, side, decoder, wanted))
    return RankResult(
        error_against_one_rank=error,
        create_s=create_s,
        start_s=start_s,
        weight_bytes=weight_bytes,
        pool_bytes=requests.pool_bytes,
        device_bytes=_device_bytes(device),
        latents=wanted.cpu().numpy(),
        rows=rows,
    )


def _row(
    mesh: Mesh,
    device: torch.device,
    requests: Requests,
    side: str,
    decoder: VAEDecoder,
    wanted: torch.Tensor,
) -> dict[str, float]:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    drawn = draw(mesh, device, requests, MODES[side], decoder)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {
        **drawn.times,
        "is_picture": drawn.is_picture,
        "difference": float((drawn.latents - wanted).abs().max()),
        "peak_bytes": peak,
    }


def _device_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
