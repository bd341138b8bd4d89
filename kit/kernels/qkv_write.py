"""Triton: rotate and normalise q and k, and write k and v to their slots, in one pass.

The arithmetic is that of kit.attention.rotary: float32 inside, one rounding at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS = 16
"""Tokens of one program, which handles one head of them."""


@triton.jit
def _kernel(
    qkv,
    cos,
    sin,
    query_weight,
    key_weight,
    slots,
    q_out,
    keys,
    values,
    num_tokens,
    tokens_per_row,
    eps,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    head = tl.program_id(1)  # of the K * (G + 2) heads of a token, as the projection orders them
    group, part = head // (G + 2), head % (G + 2)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = (token < num_tokens)[:, None]
    lane = tl.arange(0, HALF)[None, :]
    source = (token.to(tl.int64) * (K * (G + 2)) + head)[:, None] * D + lane
    raw_1 = tl.load(qkv + source, mask=there)
    raw_2 = tl.load(qkv + source + HALF, mask=there)
    slot = tl.load(slots + token, mask=token < num_tokens, other=0)
    target = (slot * K + group)[:, None] * D + lane
    if part == G + 1:
        tl.store(values + target, raw_1, mask=there)
        tl.store(values + target + HALF, raw_2, mask=there)
    else:
        # The two halves of the tables are equal, so the first one serves both.
        angle = (token % tokens_per_row)[:, None] * D + lane
        c = tl.load(cos + angle, mask=there)
        s = tl.load(sin + angle, mask=there)
        x_1, x_2 = raw_1.to(tl.float32), raw_2.to(tl.float32)
        y_1 = x_1 * c - x_2 * s
        y_2 = x_2 * c + x_1 * s
        square = tl.sum(y_1 * y_1, 1) + tl.sum(y_2 * y_2, 1)
        scale = tl.rsqrt(square / D + eps)[:, None]
        if part == G:
            w_1 = tl.load(key_weight + lane).to(tl.float32)
            w_2 = tl.load(key_weight + lane + HALF).to(tl.float32)
            tl.store(keys + target, (y_1 * scale * w_1).to(keys.dtype.element_ty), mask=there)
            tl.store(
                keys + target + HALF, (y_2 * scale * w_2).to(keys.dtype.element_ty), mask=there
            )
        else:
            w_1 = tl.load(query_weight + lane).to(tl.float32)
            w_2 = tl.load(query_weight + lane + HALF).to(tl.float32)
            place = ((token.to(tl.int64) * K + group) * G + part)[:, None] * D + lane
            tl.store(q_out + place, (y_1 * scale * w_1).to(q_out.dtype.element_ty), mask=there)
            tl.store(
                q_out + place + HALF, (y_2 * scale * w_2).to(q_out.dtype.element_ty), mask=there
            )


def write_qkv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    eps: float,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Write k and v of qkv [B, T, K, G+2, D] to their slots, return q [B, T, K*G, D].

    cos and sin float32 [T, D], both halves of D equal; slots int64 [B*T], not checked; keys and
    values [slots, K, D], written in place. All contiguous; D is a power of two.
    """
    B, T, K, G2, D = qkv.shape
    tensors = (qkv, cos, sin, slots, keys, values)
    assert all(tensor.is_contiguous() for tensor in tensors), "the kernel takes whole tensors"
    assert slots.shape == (B * T,), "a slot for every token"
    assert D & (D - 1) == 0, "the kernel takes head sizes that are powers of two"
    q = qkv.new_empty(B, T, K * (G2 - 2), D)
    grid = (triton.cdiv(B * T, _TOKENS), K * G2)
    _kernel[grid](
        qkv,
        cos,
        sin,
        query_weight,
        key_weight,
        slots,
        q,
        keys,
        values,
        B * T,
        T,
        eps,
        K=K,
        G=G2 - 2,
        D=D,
        BLOCK=_TOKENS,
        num_warps=4,
    )
    return q


def row_slots(num_rows: int, capacity: int, start: int, stop: int, device: torch.device) -> Tensor:
    """Return the slots of tokens [start, stop) of rows of `capacity` tokens, int64 [B * T]."""
    rows = torch.arange(num_rows, device=device)[:, None] * capacity
    return (rows + torch.arange(start, stop, device=device)).flatten()
