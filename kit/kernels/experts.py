"""Triton and grouped matrix products: the expert layer without waiting for the host.

Tokens are copied to where their experts' rows lie, two grouped products run over all experts, and
each token gathers its weighted results. Sizes on the host depend on shapes only, so a graph can
hold it all. Axis letters: N tokens, k experts per token, E experts, H hidden size, I expert width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROUTED_TOKENS = 64
_SCANNED = 2048
_MIN_DOT = 16
"""Smallest side of a matrix product in Triton."""


@triton.jit
def _route_kernel(
    x,
    weight,
    weights_out,
    indices_out,
    num_tokens,
    H: tl.constexpr,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    TOP_K: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, E_PADDED)
    is_token, is_expert = token < num_tokens, expert < E
    logits = tl.zeros((TOKENS, E_PADDED), dtype=tl.float32)
    for start in range(0, H, BLOCK_H):
        lane = start + tl.arange(0, BLOCK_H)
        values = tl.load(
            x + token.to(tl.int64)[:, None] * H + lane[None, :],
            mask=is_token[:, None] & (lane < H)[None, :],
            other=0.0,
        )
        w = tl.load(
            weight + expert[:, None] * H + lane[None, :],
            mask=is_expert[:, None] & (lane < H)[None, :],
            other=0.0,
        )
        # A float32 is the sum of three bfloat16, and tokens are bfloat16: three exact products
        # summed in float32 on the matrix units, in place of float32 arithmetic beside them.
        high = w.to(tl.bfloat16)
        rest = w - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        logits = tl.dot(values, low.T, logits)
        logits = tl.dot(values, middle.T, logits)
        logits = tl.dot(values, high.T, logits)
    logits = tl.where(is_expert[None, :], logits, float("-inf"))
    odds = tl.exp(logits - tl.max(logits, 1)[:, None])
    odds = odds / tl.sum(odds, 1)[:, None]
    total = tl.zeros((TOKENS,), dtype=tl.float32)
    left = tl.where(is_expert[None, :], odds, -1.0)
    for _ in range(TOP_K):
        total += tl.max(left, 1)
        best = tl.argmax(left, 1)
        left = tl.where(expert[None, :] == best[:, None], -1.0, left)
    total = tl.maximum(total, 1e-8)
    left = tl.where(is_expert[None, :], odds, -1.0)
    for nth in range(TOP_K):
        largest = tl.max(left, 1)
        best = tl.argmax(left, 1)
        left = tl.where(expert[None, :] == best[:, None], -1.0, left)
        tl.store(weights_out + token * TOP_K + nth, largest / total, mask=is_token)
        tl.store(indices_out + token * TOP_K + nth, best, mask=is_token)


def route(tokens: Tensor, weight: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Route bfloat16 [N, H] by float32 [E, H]: weights float32 [N, k], experts int32 [N, k].

    Softmax over all experts, the k most probable ones by falling probability, the lower id first
    among equals, renormalised; logits are float32 sums of exact products.
    """
    (num_tokens, hidden), num_experts = tokens.shape, len(weight)
    assert tokens.dtype == torch.bfloat16, "products are exact for bfloat16 tokens"
    assert tokens.is_contiguous(), "the kernel takes whole rows"
    weights = torch.empty(num_tokens, top_k, dtype=torch.float32, device=tokens.device)
    indices = torch.empty(num_tokens, top_k, dtype=torch.int32, device=tokens.device)
    _route_kernel[(triton.cdiv(num_tokens, _ROUTED_TOKENS),)](
        tokens,
        weight,
        weights,
        indices,
        num_tokens,
        H=hidden,
        E=num_experts,
        E_PADDED=max(_MIN_DOT, triton.next_power_of_2(num_experts)),
        TOP_K=top_k,
        TOKENS=_ROUTED_TOKENS,
        BLOCK_H=64,
        num_warps=4,
    )
    return weights, indices


@triton.jit
def _place_kernel(indices, places, ends, num_pairs, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, num_pairs, BLOCK):
        chosen = tl.load(indices + start + lane, mask=start + lane < num_pairs, other=2147483647)
        before += (chosen < expert).to(tl.int32)
    at = tl.sum(before, 0)
    for start in range(0, num_pairs, BLOCK):
        pair = start + lane
        chosen = tl.load(indices + pair, mask=pair < num_pairs, other=2147483647)
        mine = (chosen == expert).to(tl.int32)
        tl.store(places + pair, at + tl.cumsum(mine, 0) - mine, mask=mine == 1)
        at += tl.sum(mine, 0)
    tl.store(ends + expert, at)


def place(indices: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Sort the (token, choice) pairs of int32 [N, k] by expert, tokens in order.

    Returns each pair's row int32 [N, k], and the row where each expert ends, int32 [E].
    """
    places, num_pairs = torch.empty_like(indices), indices.numel()
    ends = torch.empty(num_experts, dtype=torch.int32, device=indices.device)
    _place_kernel[(num_experts,)](indices, places, ends, num_pairs, BLOCK=_SCANNED, num_warps=8)
    return places, ends


@triton.jit
def _spread_kernel(tokens, places, out, H: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    values = tl.load(tokens + token.to(tl.int64) * H + lane, mask=lane < H)
    for nth in tl.static_range(TOP_K):
        row = tl.load(places + token * TOP_K + nth).to(tl.int64)
        tl.store(out + row * H + lane, values, mask=lane < H)


def spread(tokens: Tensor, places: Tensor) -> Tensor:
    """Copy each of [N, H] tokens to its k rows, [N*k, H]."""
    (num_tokens, hidden), top_k = tokens.shape, places.shape[1]
    out = tokens.new_empty(num_tokens * top_k, hidden)
    _spread_kernel[(num_tokens,)](
        tokens,
        places,
        out,
        H=hidden,
        TOP_K=top_k,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=8,
    )
    return out


@triton.jit
def _gate_kernel(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = lane < WIDTH
    first = tl.load(x + row * (2 * WIDTH) + lane, mask=there).to(tl.float32)
    second = tl.load(x + row * (2 * WIDTH) + WIDTH + lane, mask=there).to(tl.float32)
    gated = first * second * tl.sigmoid(second)
    tl.store(out + row * WIDTH + lane, gated.to(out.dtype.element_ty), mask=there)


def gate(x: Tensor) -> Tensor:
    """Return first * silu(second) of the halves of [M, 2I], as [M, I]; float32 inside."""
    rows, width = x.shape[0], x.shape[1] // 2
    out, block = x.new_empty(rows, width), min(1024, triton.next_power_of_2(width))
    _gate_kernel[(rows, triton.cdiv(width, block))](x, out, WIDTH=width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _combine_kernel(
    rows,
    places,
    weights,
    shared,
    out,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    there = lane < H
    total = tl.load(shared + token.to(tl.int64) * H + lane, mask=there).to(tl.float32)
    for nth in tl.static_range(TOP_K):
        row = tl.load(places + token * TOP_K + nth).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + nth)
        total += weight * tl.load(rows + row * H + lane, mask=there).to(tl.float32)
    place = token.to(tl.int64) * H + lane
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


def combine(rows: Tensor, places: Tensor, weights: Tensor, shared: Tensor) -> Tensor:
    """Return shared + sum_k weights * rows of [N, H] tokens, summed in float32, in shared's dtype.

    rows [N*k, H]; places int32 and weights float32 [N, k]. A token's terms are added in the order
    of its choices, so the sum does not depend on other tokens.
    """
    (num_tokens, hidden), top_k = shared.shape, places.shape[1]
    out = torch.empty_like(shared)
    _combine_kernel[(num_tokens,)](
        rows,
        places,
        weights,
        shared,
        out,
        H=hidden,
        TOP_K=top_k,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=8,
    )
    return out


def experts(
    tokens: Tensor,
    weights: Tensor,
    indices: Tensor,
    gate_and_up: Tensor,
    down: Tensor,
    shared: Tensor,
) -> Tensor:
    """Return shared + sum_k weights * expert(token) of bfloat16 [N, H] tokens.

    weights float32, indices int32 [N, k]; gate_and_up [E, 2I, H] and down [E, H, I] bfloat16;
    shared [N, H], the shared expert's output.
    """
    places, ends = place(indices, len(down))
    # Nested, so that no large result outlives the call that reads it.
    gated = gate(torch._grouped_mm(spread(tokens, places), gate_and_up.transpose(1, 2), offs=ends))
    lowered = torch._grouped_mm(gated, down.transpose(1, 2), offs=ends)
    del gated
    return combine(lowered, places, weights, shared)
