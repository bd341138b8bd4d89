"""The one write of every kernel on a card, into pages or into contiguous rows."""

from __future__ import annotations

from torch import Tensor

from kit.attention.rotary import QKNorm, Rotary
from kit.kernels.qkv_write import write_qkv


def write_fused(
    qkv: Tensor, rotary: Rotary, norm: QKNorm, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotate and normalise, write k and v to their slots, return q; see StepKV.write.

    keys and values are one layer's pages [N, P, K, D] or rows [B, S, K, D], contiguous; slots int64
    [B*T] count their tokens from the first.
    """
    return write_qkv(
        qkv,
        rotary.cos,
        rotary.sin,
        norm.query_weight,
        norm.key_weight,
        norm.eps,
        slots,
        keys.view(-1, *keys.shape[2:]),
        values.view(-1, *values.shape[2:]),
    )
