"""A later step at the published width on a card: the kit against other ways to compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bench.cuda_baselines import (
    KnownSizesLoop,
    MaskedStaticCache,
    WaitingLoop,
    sharing_weights,
    use_loops,
)
from bench.cuda_model import (
    NUM_ROWS,
    bench_run,
    fixed_call,
    open_kv,
    published_config,
    random_model,
    whole_step,
)
from bench.cuda_timing import matmul_flops, relative_error, seconds, the_card, warm_up
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.attention.base import Pass, RequestKV, StepKV
from kit.attention.plan import StepPlan
from kit.config.deploy import KVMode
from kit.kv.store import KVShape
from kit.model.transformer import HunyuanImage3
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.graphs import StepGraphs
from kit.tokenizer.layout import Layout

NUM_LAYERS = 8
PREFIX_LEN, GRID, PAGE_SIZE = 1000, (64, 64), 176
ERROR_LIMIT = 5e-2
"""Of bfloat16 predictions after several layers whose roundings and few router choices differ."""


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare what one step points to, then time the same step in every form in turn."""
    device = the_card()
    config = published_config(NUM_LAYERS)
    model = random_model(config, device)
    official = sharing_weights(model)
    looped = sharing_weights(model)
    for mine, other in zip(model.modules(), looped.modules(), strict=True):
        if hasattr(mine, "fused"):
            other.fused = mine.fused
    loops = use_loops(looped, KnownSizesLoop)
    use_loops(official, WaitingLoop)
    layout = Layout(PREFIX_LEN, config.num_special, GRID, tail_len=1)
    shape = KVShape(
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.attention_head_dim,
        torch.bfloat16,
        device,
    )

    def flash(mode: KVMode, name: str = "FLASH_ATTN") -> RequestKV:
        return open_kv(config, mode, layout, PAGE_SIZE, name)[0]

    forms = {
        "kit": later_step(model, flash("paged_scheduler"), layout, use_graphs=True),
        "dense": later_step(model, flash("dense_legacy"), layout, use_graphs=True),
        "sdpa": later_step(model, flash("dense_legacy", "TORCH_SDPA"), layout, use_graphs=True),
        "loop": later_step(looped, flash("paged_scheduler"), layout, use_graphs=False, loops=loops),
        "official": later_step(
            official, masked_request(layout, shape, NUM_ROWS), layout, use_graphs=False
        ),
    }
    wanted = forms["official"]()
    errors = {name: relative_error(form(), wanted) for name, form in forms.items()}
    ceiling, beside = matmul_flops(device), fixed_call(model, layout, NUM_ROWS)
    rows: dict[str, list[dict[str, float]]] = {"baseline": [], "candidate": []}
    for _ in range(context.repeats):
        fixed = seconds(beside)
        for side in rows.values():
            side.append({"fixed_s": fixed})
        for name, form in forms.items():
            warm_up(ceiling)
            row = rows["candidate" if name == "kit" else "baseline"][-1]
            row[f"matmul_flops_{name}"] = ceiling()
            row[f"{name}_s"] = seconds(form)
            row[f"{name}_of_32_layers_s"] = whole_step(row[f"{name}_s"], fixed, NUM_LAYERS)
    worst = max(errors.values())
    return context.record(
        parameters={
            "num_layers": NUM_LAYERS,
            "num_rows": NUM_ROWS,
            "prefix_len": PREFIX_LEN,
            "grid": list(GRID),
            "page_size": PAGE_SIZE,
            "dtype": "bfloat16",
            "weights": "random",
            "kit": "paged_scheduler, FLASH_ATTN, replayed",
            "dense": "dense_legacy, FLASH_ATTN, replayed",
            "sdpa": "dense_legacy, TORCH_SDPA, the kit's kernels beside it, replayed",
            "loop": "as kit, eager, experts in a loop that knows its sizes beforehand",
            "official": "dense boolean mask over a static cache, keys and values repeated to the "
            "query heads, experts in a loop that waits for the host twice each, torch operations",
            "order": "kit, dense, sdpa, loop, official, alternating, matrix products before each",
            "of_32_layers": "fixed + (step - fixed) * 32 / layers",
        },
        equality=EqualityCheck.of(
            compared="clean latents a step points to, against the official form, relative error",
            limit=ERROR_LIMIT,
            seen=worst,
        ),
        baseline=Measurement("other forms of the step", tuple(rows["baseline"])),
        candidate=Measurement("the kit's step", tuple(rows["candidate"])),
        paired=True,
        ratios={
            f"{name}_over_kit": (f"baseline.{name}_of_32_layers_s", "candidate.kit_of_32_layers_s")
            for name in ("dense", "sdpa", "loop", "official")
        },
        findings={f"error_{name}": error for name, error in errors.items()},
    )


def later_step(
    model: HunyuanImage3,
    kv: RequestKV,
    layout: Layout,
    *,
    use_graphs: bool,
    loops: Sequence[KnownSizesLoop] = (),
) -> Callable[[], Tensor]:
    """Run the first step; return the second, which may be run again and gives clean latents.

    `loops` forget their sizes here and learn those of the second step.
    """
    graphs = StepGraphs(model) if use_graphs else None
    loop = DenoiseLoop(model, kv, bench_run(layout, None, 2), None, graphs)
    loop.step()
    latents = loop.latents.clone()

    def step() -> Tensor:
        loop.step_index, loop.latents = 1, latents
        loop.step()
        return loop.clean_estimate()

    for experts in loops:
        experts.sizes = None
    step()
    return step


def masked_request(layout: Layout, shape: KVShape, num_rows: int) -> MaskedRequest:
    """Make room for a request of the official form."""
    rows = (num_rows, layout.kv_len, shape.num_kv_heads, shape.head_dim)
    cache = torch.zeros(shape.num_layers, 2, *rows, dtype=shape.dtype, device=shape.device)
    return MaskedRequest(layout, cache)


class MaskedRequest:
    """A RequestKV of the official form."""

    num_paged_calls = 0

    def __init__(self, layout: Layout, cache: Tensor) -> None:
        self._layout, self._cache = layout, cache

    @property
    def num_bytes(self) -> int:
        """See RequestKV.num_bytes."""
        return self._cache.nbytes

    def step(self, plan: StepPlan) -> StepKV:
        """See RequestKV.step."""
        return MaskedStaticCache(self._layout, plan, self._cache)

    def first_passes(self, plan: StepPlan) -> tuple[Pass, ...]:
        """See RequestKV.first_passes."""
        return (Pass(self.step(plan), plan, NUM_ROWS),)

    def scrub(self) -> None:
        """See RequestKV.scrub."""
        self._cache.zero_()
