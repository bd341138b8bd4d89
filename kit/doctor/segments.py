"""Run each attention segment of this device's kernels against a float32 masked oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kit.attention.oracle import attend as oracle_attend
from kit.attention.oracle import layout_mask
from kit.attention.plan import plan_step
from kit.attention.registry import create_backend
from kit.attention.rotary import QKNorm, Rotary, rotate_and_norm, split_qkv
from kit.config.deploy import KVMode
from kit.kv.allocation import KVAllocation
from kit.model.rope import rotary_tables
from kit.modelspec.config import ModelConfig
from kit.tokenizer.layout import Layout, positions_yx

RELATIVE_LIMIT = 5e-3


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

    @property
    def passed(self) -> bool:
        return self.relative_error <= RELATIVE_LIMIT  # False for NaN


def check_segments(
    model: ModelConfig, kv_mode: KVMode, page_size: int | None, *, device: str, dtype: torch.dtype
) -> list[SegmentError]:
    """Write and read one layer with random values at the model's head shape.

    The layout has a prefix that ends inside a page and an image of odd sides. Two rows.
    """
    layout = Layout(prefix_len=37, num_special=model.num_special, grid=(13, 11), tail_len=1)
    num_rows, length = 2, layout.kv_len
    allocation = None
    if page_size is not None:
        pages = -(-length // page_size)
        # Descending ids: a kernel that ignores the table and reads in order is found out.
        ids = tuple(range(num_rows * pages - 1, -1, -1))
        tables = tuple(ids[row * pages : (row + 1) * pages] for row in range(num_rows))
        allocation = KVAllocation("doctor", 1, tables, length, page_size)
    backend = create_backend(
        device=torch.device(device),
        kv_mode=kv_mode,
        name="FLASH_ATTN",
        model=model,
        dtype=dtype,
        page_size=page_size,
        num_pages=allocation.num_pages if allocation else 0,
    )
    generator = torch.Generator().manual_seed(0)
    H, K, D = model.num_attention_heads, model.num_key_value_heads, model.attention_head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    norm = QKNorm(random(D).abs() + 0.5, random(D).abs() + 0.5, model.rms_norm_eps)
    positions = positions_yx(layout)[:length]
    rotary = rotary_tables(positions, D, model.rope_theta, torch.device(device))
    mask = layout_mask(layout).to(device)
    kv = backend.open(layout, num_rows, allocation)
    errors: list[SegmentError] = []
    written = random(num_rows, length, K, H // K + 2, D)
    for step in ("first", "later"):
        plan = plan_step(layout, first=step == "first")
        if step == "later":  # the target is rewritten with new values, the prefix stays
            written = written.clone()
            written[:, plan.start :] = random(*written[:, plan.start :].shape)
        view = kv.step(plan)
        part = Rotary(rotary.cos[plan.start : plan.end], rotary.sin[plan.start : plan.end])
        q = view.write(0, written[:, plan.start : plan.end].contiguous(), part, norm)
        seen = view.attend(0, q)
        _, k, v = split_qkv(written)
        k = rotate_and_norm(k, rotary, norm.key_weight, norm.eps)
        wanted = oracle_attend(q, k, v, mask[plan.start : plan.end])
        for segment in plan.segments:
            span = slice(segment.start - plan.start, segment.end - plan.start)
            difference = (seen[:, span].float() - wanted[:, span]).norm()
            relative = float(difference / wanted[:, span].norm())
            errors.append(
                SegmentError(kv_mode, step, segment.start, segment.end, segment.causal, relative)
            )
    return errors
