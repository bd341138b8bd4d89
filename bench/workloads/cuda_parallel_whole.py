"""Ranks with whole weights: tokens (strict Ulysses) or CFG rows shared among the cards here."""

from __future__ import annotations

import statistics
from typing import Final

import torch

from bench.cuda_baselines import sharing_weights
from bench.cuda_model import NUM_ROWS, fixed_call
from bench.cuda_timing import matmul_flops, relative_error, warm_up
from bench.rank_model import (
    PUBLISHED,
    Requests,
    Setting,
    give_memory_back,
    random_shard,
    together,
)
from bench.ranks import num_cards, run_on_ranks
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.model.fused import use_fused_kernels
from kit.model.shard import Shard
from kit.model.transformer import HunyuanImage3
from kit.parallel.group import ALONE, Mesh, RankGroup
from kit.parallel.topology import Topology

NUM_PARITY_LAYERS = 2
ERROR_LIMIT = 0.05
"""Random weights: a token whose experts are nearly as likely goes elsewhere by one rounding."""

_MODE: Final = "paged_scheduler"


def run(context: Context) -> Record:
    """Share tokens among all cards, and rows between two."""
    return measure_setting(context, PUBLISHED, num_cards())


def measure_setting(context: Context, setting: Setting, num_ranks: int) -> Record:
    """Compare latents of a few layers, then time steps of all forms in turn."""
    topology = Topology(ulysses=num_ranks)
    ranks = run_on_ranks(topology, setting.device, on_rank, setting, context.repeats)
    leader = ranks[0]
    worst = max(error for rank in ranks for error in rank["errors"].values())
    forms = tuple(leader["errors"])

    def rows(columns: tuple[str, ...]) -> tuple[dict[str, float], ...]:
        return tuple({name: row[name] for name in columns} for row in leader["rows"])

    baseline = rows(("alone_s", "fixed_alone_s"))
    candidate = rows(tuple(name for form in forms for name in (f"{form}_s", f"fixed_{form}_s")))
    alone = statistics.median(row["alone_s"] for row in baseline)
    shares = {form: num_ranks if form == "ulysses" else 2 for form in forms}
    return context.record(
        parameters={
            "topologies": [str(topology), *(["CFG2"] if "cfg" in forms else [])],
            "num_layers": setting.num_layers_alone,
            "num_parity_layers": NUM_PARITY_LAYERS,
            "num_rows": NUM_ROWS,
            "grid": list(setting.grid),
            "prefix_len": setting.prefix_len,
            "page_size": setting.page_size,
            "dtype": str(setting.dtype),
            "weights": "random, whole on every rank",
            "share_of_linear": "seconds of a step on one card / (ranks x seconds on all)",
            "order": "alone, ulysses, cfg, alternating; ranks begin together",
        },
        equality=EqualityCheck.of(
            compared="clean latents of a few layers, against one rank, relative error",
            limit=ERROR_LIMIT,
            seen=worst,
        ),
        baseline=Measurement("one card", baseline),
        candidate=Measurement(f"{num_ranks} cards that share tokens, or rows", candidate),
        paired=True,
        ratios={
            f"{form}_over_alone": (f"candidate.{form}_s", "baseline.alone_s") for form in forms
        },
        findings={
            **{f"error_{form}": leader["errors"][form] for form in forms},
            **{
                f"share_of_linear_{form}": alone
                / (shares[form] * statistics.median(row[f"{form}_s"] for row in candidate))
                for form in forms
            },
        },
    )


@torch.inference_mode()
def on_rank(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> dict[str, object]:
    """Measure on one rank; only numbers come back."""
    if setting.is_card:
        ceiling = matmul_flops(device)
        warm_up(ceiling)
        del ceiling
    errors = _errors(mesh, device, setting)
    give_memory_back()
    forms = _forms(mesh, device, setting, setting.num_layers_alone)
    loops, beside = {}, {}
    for name, requests in forms.items():
        loops[name] = requests.loop(_MODE, 2 + repeats)
        loops[name].step()
        loops[name].step()
        beside[name] = fixed_call(requests.model, requests.layout, requests.num_rows)
    rows = [
        {
            f"{prefix}{name}_s": together(mesh, device, call)
            for name in forms
            for prefix, call in (("fixed_", beside[name]), ("", loops[name].step))
        }
        for _ in range(repeats)
    ]
    return {"errors": errors, "rows": rows}


def _errors(mesh: Mesh, device: torch.device, setting: Setting) -> dict[str, float]:
    """Return how far clean latents of each form are from those of a rank alone, relatively."""
    clean = {}
    for name, requests in _forms(mesh, device, setting, NUM_PARITY_LAYERS).items():
        loop = requests.loop(_MODE, 2)
        loop.step()
        loop.step()
        clean[name] = loop.clean_estimate().clone()
    wanted = clean.pop("alone")
    return {name: relative_error(seen, wanted) for name, seen in clean.items()}


def _forms(
    mesh: Mesh, device: torch.device, setting: Setting, num_layers: int
) -> dict[str, Requests]:
    """Return requests on one set of weights: alone, with shared tokens, with shared rows."""
    model = random_shard(setting.config(num_layers), device, setting.dtype)
    split = sharing_weights(model, Shard(ulysses=mesh.everyone))
    use_fused_kernels(split, device, setting.dtype)
    shared: dict[str, tuple[HunyuanImage3, RankGroup]] = {
        "alone": (model, ALONE),
        "ulysses": (split, ALONE),
    }
    if mesh.everyone.size == NUM_ROWS:
        shared["cfg"] = (model, mesh.everyone)
    return {name: Requests(setting, form, cfg, _MODE) for name, (form, cfg) in shared.items()}
