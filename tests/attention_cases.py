"""Random requests for attention tests: what a model would hand to its keys and values, twice.

A case is a first step (the whole sequence) and a later one (the target, with new values), over
several layers, with random rotary tables and norm weights. What it must give is computed apart
from the kit's own rotation, norm and segments: complex numbers, float64, and the mask oracle.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kit.attention import oracle
from kit.attention.base import RequestKV
from kit.attention.plan import StepPlan, plan_step
from kit.attention.rotary import QKNorm, Rotary
from kit.kv.allocation import KVAllocation
from kit.kv.store import KVShape
from kit.tokenizer.layout import Layout

NUM_LAYERS = 2
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Heads:
    """Shape of the attention heads."""

    num_kv_heads: int
    group: int
    head_dim: int


HEADS = Heads(num_kv_heads=2, group=2, head_dim=16)


@dataclass(frozen=True)
class Case:
    """One request with everything that a model would compute for it."""

    layout: Layout
    num_rows: int
    heads: Heads
    dtype: torch.dtype
    rotary: Rotary
    norms: tuple[QKNorm, ...]
    first: tuple[Tensor, ...]
    """[B, kv_len, K, G+2, D] of each layer."""

    later: tuple[Tensor, ...]
    """[B, target_len, K, G+2, D] of each layer."""

    @property
    def shape(self) -> KVShape:
        device = self.first[0].device
        return KVShape(NUM_LAYERS, self.heads.num_kv_heads, self.heads.head_dim, self.dtype, device)

    def to(self, device: torch.device) -> Case:
        """Return the case with its tensors on another device."""

        def moved(norm: QKNorm) -> QKNorm:
            return QKNorm(norm.query_weight.to(device), norm.key_weight.to(device), norm.eps)

        return replace(
            self,
            rotary=Rotary(self.rotary.cos.to(device), self.rotary.sin.to(device)),
            norms=tuple(moved(norm) for norm in self.norms),
            first=tuple(qkv.to(device) for qkv in self.first),
            later=tuple(qkv.to(device) for qkv in self.later),
        )

    @property
    def plans(self) -> tuple[StepPlan, StepPlan]:
        return plan_step(self.layout, first=True), plan_step(self.layout, first=False)


def make_case(
    layout: Layout,
    *,
    num_rows: int = 2,
    heads: Heads = HEADS,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """Draw a case; the same seed gives the same values."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def qkv(num_tokens: int) -> Tensor:
        packed = (heads.num_kv_heads, heads.group + 2, heads.head_dim)
        return draw(num_rows, num_tokens, *packed).to(dtype)

    def weight() -> Tensor:
        return (1 + 0.25 * draw(heads.head_dim)).to(dtype)

    angles = (3 * draw(layout.kv_len, heads.head_dim // 2)).repeat(1, 2)
    return Case(
        layout=layout,
        num_rows=num_rows,
        heads=heads,
        dtype=dtype,
        rotary=Rotary(angles.cos(), angles.sin()),
        norms=tuple(QKNorm(weight(), weight(), 1e-5) for _ in range(NUM_LAYERS)),
        first=tuple(qkv(layout.kv_len) for _ in range(NUM_LAYERS)),
        later=tuple(qkv(layout.target_len) for _ in range(NUM_LAYERS)),
    )


def allocate(
    layout: Layout, *, num_rows: int = 2, page_size: int, num_pages: int, seed: int = 0
) -> KVAllocation:
    """Give every row pages of its own, drawn in random order from a pool of `num_pages`."""
    per_row = -(-layout.kv_len // page_size)
    ids = random.Random(seed).sample(range(num_pages), num_rows * per_row)
    tables = tuple(tuple(ids[row * per_row : (row + 1) * per_row]) for row in range(num_rows))
    return KVAllocation("r1", 1, tables, layout.kv_len, page_size)


def run_step(kv: RequestKV, case: Case, *, first: bool, plan: StepPlan | None = None) -> Tensor:
    """Run all layers of one step; returns [L, B, T, H, D]. `plan` overrides the right one."""
    right = plan_step(case.layout, first=first)
    rotary = Rotary(
        case.rotary.cos[right.start : right.end], case.rotary.sin[right.start : right.end]
    )
    step = kv.step(plan or right)
    outputs = []
    for layer, qkv in enumerate(case.first if first else case.later):
        q = step.write(layer, qkv, rotary, case.norms[layer])
        outputs.append(step.attend(layer, q))
    return torch.stack(outputs)


def with_common_tokens(case: Case, num_shared: int) -> Case:
    """Return the case with equal keys, values and queries in the first tokens of all rows."""
    first = tuple(qkv.clone() for qkv in case.first)
    for qkv in first:
        qkv[:, :num_shared] = qkv[:1, :num_shared]
    return replace(case, first=first)


def sharing(allocation: KVAllocation, *, cached: int = 0, shared: int = 0) -> KVAllocation:
    """Return the allocation with its rows' common pages made one, as a Scheduler hands it out."""
    num_common = shared // allocation.page_size
    head, tables = allocation.page_tables[0][:num_common], allocation.page_tables
    return replace(
        allocation,
        page_tables=tuple((*head, *table[num_common:]) for table in tables),
        num_cached_tokens=cached,
        num_shared_tokens=shared,
    )


def run_first_passes(kv: RequestKV, case: Case) -> list[tuple[StepPlan, Tensor]]:
    """Run the first step as a model does; returns each pass's plan and outputs [L, b, T, H, D]."""
    results = []
    for item in kv.first_passes(plan_step(case.layout, first=True)):
        span = slice(item.plan.start, item.plan.end)
        rotary = Rotary(case.rotary.cos[span].contiguous(), case.rotary.sin[span].contiguous())
        outputs = []
        for layer, qkv in enumerate(case.first):
            own = qkv[: item.num_rows, span].contiguous()
            q = item.kv.write(layer, own, rotary, case.norms[layer])
            outputs.append(item.kv.attend(layer, q))
        results.append((item.plan, torch.stack(outputs)))
    return results


def run(kv: RequestKV, case: Case) -> tuple[Tensor, Tensor]:
    """Run the first step and the later one."""
    return run_step(kv, case, first=True), run_step(kv, case, first=False)


def expected(case: Case, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what `run` must give, float32; `mask` overrides the layout's."""
    mask = oracle.layout_mask(case.layout) if mask is None else mask
    mask = mask.to(case.first[0].device)
    start = case.layout.prefix_len
    steps: tuple[list[Tensor], list[Tensor]] = ([], [])
    for norm, first, later in zip(case.norms, case.first, case.later, strict=True):
        rewritten = torch.cat((first[:, :start], later), dim=1)
        for queries_from, written, outputs in ((0, first, steps[0]), (start, rewritten, steps[1])):
            q, k, v = _prepared(written, case.rotary, norm)
            attended = oracle.attend(q[:, queries_from:], k, v, mask[queries_from:])
            outputs.append(attended)
    return torch.stack(steps[0]), torch.stack(steps[1])


def largest_error(outputs: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> float:
    """Return the largest absolute difference over both steps; NaN if there is one."""
    errors = [(a.float() - b.float()).abs().max() for a, b in zip(outputs, wanted, strict=True)]
    return float(torch.stack(errors).max())


def equal(outputs: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> bool:
    """Whether both steps agree bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(outputs, others, strict=True))


def _prepared(written: Tensor, rotary: Rotary, norm: QKNorm) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate and normalise by complex numbers in float64, then round to the case's dtype."""

    def prepare(x: Tensor, weight: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turn = torch.complex(rotary.cos[:, :half].double(), rotary.sin[:, :half].double())
        z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn[:, None]
        turned = torch.cat((z.real, z.imag), dim=-1)
        rms = (turned.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return (turned / rms * weight.double()).to(x.dtype)

    q = prepare(written[:, :, :, :-2].flatten(2, 3), norm.query_weight)
    k = prepare(written[:, :, :, -2], norm.key_weight)
    return q, k, written[:, :, :, -1]
