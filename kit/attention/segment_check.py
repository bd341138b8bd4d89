"""Runs each attention segment of a backend against a float32 masked oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kit.attention.base import KVBackend
from kit.attention.oracle import attend as oracle_attend
from kit.attention.oracle import layout_mask
from kit.attention.plan import plan_step
from kit.attention.rotary import QKNorm, Rotary, rotate_and_norm, split_qkv
from kit.kv.allocation import KVAllocation
from kit.kv.store import KVShape
from kit.modelspec.footprint import num_pages
from kit.tokenizer.layout import Layout

NUM_ROWS = 2


@dataclass(frozen=True)
class SegmentError:
    """Relative error of one segment: ||out - oracle|| / ||oracle||."""

    kv_mode: str
    step: str
    """first or later."""

    start: int
    end: int
    causal: bool
    relative_error: float


def check_layout(
    backend: KVBackend,
    layout: Layout,
    allocation: KVAllocation | None,
    shape: KVShape,
    rotary: Rotary,
    *,
    num_heads: int,
    eps: float,
) -> list[SegmentError]:
    """Write and read one layer of random values, in a first step and in a later one.

    Rows: NUM_ROWS. shape is that of the backend's store, rotary has the tables of every token.
    """
    generator = torch.Generator().manual_seed(0)
    K, D, length = shape.num_kv_heads, shape.head_dim, layout.kv_len

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(shape.device, shape.dtype)

    norm = QKNorm(random(D).abs() + 0.5, random(D).abs() + 0.5, eps)
    mask = layout_mask(layout).to(shape.device)
    kv = backend.open(layout, NUM_ROWS, allocation)
    errors: list[SegmentError] = []
    written = random(NUM_ROWS, length, K, num_heads // K + 2, D)
    for step in ("first", "later"):
        plan = plan_step(layout, first=step == "first")
        if step == "later":  # the target is rewritten with new values, the prefix stays
            written = written.clone()
            written[:, plan.start :] = random(*written[:, plan.start :].shape)
        view = kv.step(plan)
        part = Rotary(rotary.cos[plan.start : plan.end], rotary.sin[plan.start : plan.end])
        given = view.write(0, written[:, plan.start : plan.end].contiguous(), part, norm)
        seen = view.attend(0, given)
        q, k, v = split_qkv(written)
        q = rotate_and_norm(q, rotary, norm.query_weight, norm.eps)[:, plan.start : plan.end]
        k = rotate_and_norm(k, rotary, norm.key_weight, norm.eps)
        wanted = oracle_attend(q, k, v, mask[plan.start : plan.end])
        mode = "dense_legacy" if allocation is None else "paged_scheduler"
        for segment in plan.segments:
            span = slice(segment.start - plan.start, segment.end - plan.start)
            difference = (seen[:, span].float() - wanted[:, span]).norm()
            relative = float(difference / wanted[:, span].norm())
            errors.append(
                SegmentError(mode, step, segment.start, segment.end, segment.causal, relative)
            )
    return errors


def descending_pages(layout: Layout, page_size: int) -> KVAllocation:
    """Give every row pages of its own; a kernel that reads them in order is found out."""
    pages = num_pages(layout.kv_len, page_size)
    ids = tuple(range(NUM_ROWS * pages - 1, -1, -1))
    tables = tuple(ids[row * pages : (row + 1) * pages] for row in range(NUM_ROWS))
    return KVAllocation("check", 1, tables, layout.kv_len, page_size)
