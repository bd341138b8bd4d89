"""Whole requests on each published topology that the cards here hold: paged against dense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from pydantic import JsonValue

from bench import runner
from bench.cuda_model import MODES, NUM_ROWS
from bench.cuda_timing import relative_error
from bench.published import ALL_TOPOLOGIES, MIN_CARDS
from bench.rank_memory import check_fits, predicted_bytes
from bench.rank_model import PUBLISHED, Setting
from bench.rank_requests import NUM_PARITY_LAYERS, Latents, RankResult, measure_rank
from bench.ranks import num_cards, run_on_ranks
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context, part_name
from kit.errors import UnsupportedError
from kit.parallel.topology import Topology

PARTS = tuple(map(str, ALL_TOPOLOGIES))
"""What `--only` may name; each leaves a record of its own."""

ERROR_LIMITS: Mapping[torch.dtype, float] = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Clean latents of a few layers against one rank, relative error. Random weights: a token whose
experts are nearly as likely goes elsewhere by one rounding."""

WHOLE_ERROR_LIMITS: Mapping[torch.dtype, float] = {torch.float32: 1e-4, torch.bfloat16: 0.15}
"""Latents of all layers and steps against another topology. In bfloat16 roundings add up: TP2 of a
narrow model is 0.4 % off one rank with 2 layers and 2 % with 32; another picture is above 100 %."""

_START_LIMIT_S, _IMAGE_LIMIT_S = 180.0, 3.0


@dataclass(frozen=True)
class Case:
    """A topology and what runs on it."""

    topology: Topology
    setting: Setting


OnRank = Callable[..., RankResult]


def run(context: Context) -> Iterator[Record]:
    """Yield a record for each topology that is named, or that the cards here hold."""
    named = [topology for topology in ALL_TOPOLOGIES if str(topology) in context.only]
    chosen = named or topologies_of(num_cards())
    yield from measure(context, [Case(topology, setting_of(topology)) for topology in chosen])


def topologies_of(num: int) -> list[Topology]:
    """Return those that so many cards hold; those of two cards only where there are no four."""
    least = MIN_CARDS if num >= MIN_CARDS else 2
    return [topology for topology in ALL_TOPOLOGIES if least <= topology.size <= num]


def setting_of(topology: Topology) -> Setting:
    """Return the whole model, or the layers that fit where every rank has all weights."""
    if topology.tensor > 1:
        return PUBLISHED
    return replace(PUBLISHED, num_layers=PUBLISHED.num_layers_alone)


def measure(
    context: Context, cases: Sequence[Case], on_rank: OnRank = measure_rank
) -> Iterator[Record]:
    """Yield a record for each case; one that fails leaves the others alone.

    Latents are compared with those of the first case of as many layers, too, where it is another.
    """
    first: dict[int, tuple[str, Latents]] = {}
    for case in cases:
        work = partial(_measure_case, case=case, first=first, on_rank=on_rank)
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
        equality=EqualityCheck.of(
            compared="latents of every request of both modes and of all ranks, largest absolute "
            "difference; 1 is added for an error against one rank, or another topology, above its "
            "limit, and for each request without a picture",
            limit=0,
            seen=seen,
        ),
        baseline=Measurement(f"{MODES['baseline']}, {topology}", rows["baseline"]),
        candidate=Measurement(f"{MODES['candidate']}, {topology}", rows["candidate"]),
        paired=True,
        ratios=pair_ratios(("image_s",)),
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
