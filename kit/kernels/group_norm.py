"""Triton: group norm of few, very large groups, and the SiLU behind it.

A group is read by many programs, where `torch.nn.functional.group_norm` gives each group to one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_MOST_PARTS = 128
"""Programs that sum one group, those of all ranks together."""


@triton.jit
def _moments_kernel(x, moments, group_numel, part_numel, BLOCK: tl.constexpr):
    group, part = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    start = x + group.to(tl.int64) * group_numel
    first = part.to(tl.int64) * part_numel
    # Sums of squares are taken about a value of the part: a mean far from zero costs no digits.
    about = tl.load(start + first, mask=first < group_numel, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(0, part_numel, BLOCK):
        place = first + at + lane
        there = (place < group_numel) & (at + lane < part_numel)
        values = tl.where(there, tl.load(start + place, mask=there, other=0.0) - about, 0.0)
        total += values
        squares += values * values
    # The last parts of a small group are empty.
    count = tl.maximum(tl.minimum(group_numel - first, part_numel), 0).to(tl.float32)
    total_of_part = tl.sum(total, 0)
    offset = total_of_part / tl.maximum(count, 1.0)
    out = moments + (group * tl.num_programs(1) + part) * 3
    tl.store(out, count)
    tl.store(out + 1, about + offset)
    tl.store(out + 2, tl.maximum(tl.sum(squares, 0) - total_of_part * offset, 0.0))


@triton.jit
def _norm_kernel(
    x,
    moments,
    weight,
    bias,
    out,
    eps,
    num_parts,
    parts_of_rank,
    num_groups,
    num_channels,
    channels_of_group,
    channel_numel,
    SILU: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)  # of B * C
    channel, group = row % num_channels, row // channels_of_group
    part = tl.arange(0, PARTS)
    # [ranks, groups, parts of a rank, 3]
    mine = (part // parts_of_rank * num_groups + group) * parts_of_rank + part % parts_of_rank
    mine = moments + mine * 3
    count = tl.load(mine, mask=part < num_parts, other=0.0)
    offset = tl.load(mine + 1, mask=part < num_parts, other=0.0)
    squares = tl.load(mine + 2, mask=part < num_parts, other=0.0)
    total = tl.sum(count, 0)
    about = tl.load(moments + group * parts_of_rank * 3 + 1)  # the first part is never empty
    offset = tl.where(count > 0, offset - about, 0.0)
    middle = tl.sum(count * offset, 0) / total
    offset -= middle
    scale = tl.rsqrt(tl.sum(squares + count * offset * offset, 0) / total + eps)
    scale = scale * tl.load(weight + channel).to(tl.float32)
    shift = tl.load(bias + channel).to(tl.float32) - (about + middle) * scale
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = place < channel_numel
    place = row.to(tl.int64) * channel_numel + place
    values = tl.load(x + place, mask=there, other=0.0).to(tl.float32) * scale + shift
    if SILU:
        values = values * tl.sigmoid(values)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=there)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    silu: bool,
    num_ranks: int = 1,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Normalise [B, C, ...] over groups of neighbouring channels; then SiLU, if asked for.

    weight and bias [C]. Returns a contiguous tensor of x's shape and dtype; float32 inside. Where
    each of `num_ranks` has a part of every channel, `gather` joins their moments, float32
    [groups, parts, 3] (count, mean, squares about the mean), along the first axis.
    """
    x = x.contiguous()
    num_rows, num_channels = x.shape[:2]
    group_numel = x.numel() // (num_rows * num_groups)
    channel_numel = x.numel() // (num_rows * num_channels)
    own_parts = max(1, _MOST_PARTS // num_ranks)  # as many on every rank, whatever each has
    part_numel = triton.cdiv(triton.cdiv(group_numel, own_parts), _BLOCK) * _BLOCK
    moments = x.new_empty((num_rows * num_groups, own_parts, 3), dtype=torch.float32)
    _moments_kernel[(num_rows * num_groups, own_parts)](
        x, moments, group_numel, part_numel, BLOCK=_BLOCK, num_warps=8
    )
    if gather is not None:
        moments = gather(moments)
    num_parts = own_parts * num_ranks
    out = torch.empty_like(x)
    block = min(_BLOCK, triton.next_power_of_2(channel_numel))
    _norm_kernel[(num_rows * num_channels, triton.cdiv(channel_numel, block))](
        x,
        moments,
        weight,
        bias,
        out,
        eps,
        num_parts,
        own_parts,
        num_rows * num_groups,
        num_channels,
        num_channels // num_groups,
        channel_numel,
        SILU=silu,
        PARTS=triton.next_power_of_2(num_parts),
        BLOCK=block,
        num_warps=8,
    )
    return out
