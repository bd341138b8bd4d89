"""Triton: which experts a token goes to, and where its copies lie when sorted by expert.

Nothing waits for the host. Axis letters: N tokens, k experts per token, E experts, H hidden size.
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
def _place_kernel(
    indices, places, sources, ends, num_pairs, first, TOP_K: tl.constexpr, BLOCK: tl.constexpr
):
    expert = first + tl.program_id(0)
    behind = first + tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, num_pairs, BLOCK):
        chosen = tl.load(indices + start + lane, mask=start + lane < num_pairs, other=2147483647)
        before += ((chosen >= first) & (chosen < expert)).to(tl.int32)
    at = tl.sum(before, 0)
    for start in range(0, num_pairs, BLOCK):
        pair = start + lane
        chosen = tl.load(indices + pair, mask=pair < num_pairs, other=2147483647)
        if expert == first:
            foreign = (pair < num_pairs) & ((chosen < first) | (chosen >= behind))
            tl.store(places + pair, -1, mask=foreign)
        mine = (chosen == expert).to(tl.int32)
        place = at + tl.cumsum(mine, 0) - mine
        tl.store(places + pair, place, mask=mine == 1)
        tl.store(sources + place, pair // TOP_K, mask=mine == 1)
        at += tl.sum(mine, 0)
    tl.store(ends + tl.program_id(0), at)


def place(indices: Tensor, num_experts: int, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the (token, choice) pairs of int32 [N, k] by expert, tokens in order.

    Only pairs of the E experts from `first` on get a row. Returns each pair's row int32 [N, k], -1
    without one; each row's token int32 [N*k], undefined past the last row; and the row where each
    of the experts ends, int32 [E].
    """
    places, num_pairs = torch.empty_like(indices), indices.numel()
    sources = torch.empty(num_pairs, dtype=torch.int32, device=indices.device)
    ends = torch.empty(num_experts, dtype=torch.int32, device=indices.device)
    _place_kernel[(num_experts,)](
        indices,
        places,
        sources,
        ends,
        num_pairs,
        first,
        TOP_K=indices.shape[1],
        BLOCK=_SCANNED,
        num_warps=8,
    )
    return places, sources, ends
