"""Triton: group norm of few, very large groups, and the SiLU behind it.

A group is read by many programs, where `torch.nn.functional.group_norm` gives each group to one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_MOST_PARTS = 128
"""Programs that sum one group."""


@triton.jit
def _sum_kernel(x, sums, group_numel, part_numel, BLOCK: tl.constexpr):
    group, part = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    start = x + group.to(tl.int64) * group_numel
    # Sums of squares are taken about a value of the group: a mean far from zero costs no digits.
    about = tl.load(start).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    first = part.to(tl.int64) * part_numel
    for at in range(0, part_numel, BLOCK):
        place = first + at + lane
        there = (place < group_numel) & (at + lane < part_numel)
        values = tl.where(there, tl.load(start + place, mask=there, other=0.0) - about, 0.0)
        total += values
        squares += values * values
    out = sums + (group * tl.num_programs(1) + part) * 2
    tl.store(out, tl.sum(total, 0))
    tl.store(out + 1, tl.sum(squares, 0))


@triton.jit
def _norm_kernel(
    x,
    sums,
    weight,
    bias,
    out,
    eps,
    num_parts,
    num_channels,
    channels_of_group,
    channel_numel,
    SILU: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)  # of B * C
    channel, group = row % num_channels, row // channels_of_group
    group_numel = channel_numel.to(tl.int64) * channels_of_group
    part = tl.arange(0, PARTS)
    mine = sums + (group * num_parts + part) * 2
    count = group_numel.to(tl.float32)
    offset = tl.sum(tl.load(mine, mask=part < num_parts, other=0.0), 0) / count
    squares = tl.sum(tl.load(mine + 1, mask=part < num_parts, other=0.0), 0) / count
    about = tl.load(x + group.to(tl.int64) * group_numel).to(tl.float32)
    scale = tl.rsqrt(tl.maximum(squares - offset * offset, 0.0) + eps)
    scale = scale * tl.load(weight + channel).to(tl.float32)
    shift = tl.load(bias + channel).to(tl.float32) - (about + offset) * scale
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = place < channel_numel
    place = row.to(tl.int64) * channel_numel + place
    values = tl.load(x + place, mask=there, other=0.0).to(tl.float32) * scale + shift
    if SILU:
        values = values * tl.sigmoid(values)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=there)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float, *, silu: bool
) -> Tensor:
    """Normalise [B, C, ...] over groups of neighbouring channels; then SiLU, if asked for.

    weight and bias [C]. Returns a contiguous tensor of x's shape and dtype; float32 inside.
    """
    x = x.contiguous()
    num_rows, num_channels = x.shape[:2]
    group_numel = x.numel() // (num_rows * num_groups)
    channel_numel = x.numel() // (num_rows * num_channels)
    num_parts = min(_MOST_PARTS, triton.cdiv(group_numel, _BLOCK))
    part_numel = triton.cdiv(triton.cdiv(group_numel, num_parts), _BLOCK) * _BLOCK
    sums = torch.empty(num_rows * num_groups, num_parts, 2, dtype=torch.float32, device=x.device)
    _sum_kernel[(num_rows * num_groups, num_parts)](
        x, sums, group_numel, part_numel, BLOCK=_BLOCK, num_warps=8
    )
    out = torch.empty_like(x)
    block = min(_BLOCK, triton.next_power_of_2(channel_numel))
    _norm_kernel[(num_rows * num_channels, triton.cdiv(channel_numel, block))](
        x,
        sums,
        weight,
        bias,
        out,
        eps,
        num_parts,
        num_channels,
        num_channels // num_groups,
        channel_numel,
        SILU=silu,
        PARTS=triton.next_power_of_2(num_parts),
        BLOCK=block,
        num_warps=8,
    )
    return out
