"""2-D rotary embedding and QK norm as plain tensor operations.

Rotation comes first and the norm second; the learned norm weight makes the order matter.
Both run in float32 and are cast once at the end (HunyuanImage-3.0 reference attention).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """Tables of the tokens of one forward pass: float32 [T, D] each, shared by all rows."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class QKNorm:
    """RMS norm over the head size of one layer: weights [D] for q and for k."""

    query_weight: Tensor
    key_weight: Tensor
    eps: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * x / rms(x) over the last axis; float32 inside, x's dtype outside."""
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight.to(x.dtype)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate float32 [B, T, H, D]: pairs are (j, j + D/2)."""
    half = x.shape[-1] // 2
    cos, sin = rotary.cos[:, None], rotary.sin[:, None]
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


def split_qkv(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, T, K, G+2, D] into q [B, T, K*G, D], k [B, T, K, D], v [B, T, K, D]."""
    B, T, K, G2, D = qkv.shape
    q = qkv[:, :, :, : G2 - 2].reshape(B, T, K * (G2 - 2), D)
    return q, qkv[:, :, :, G2 - 2], qkv[:, :, :, G2 - 1]


def rotate_and_norm(x: Tensor, rotary: Rotary, weight: Tensor, eps: float) -> Tensor:
    """Rotate [B, T, H, D] and normalise it over D; returns x's dtype."""
    turned = rotate(x.float(), rotary)
    normed = turned * torch.rsqrt(turned.pow(2).mean(-1, keepdim=True) + eps)
    return normed.mul_(weight.float()).to(x.dtype)


def prepare_qkv(qkv: Tensor, rotary: Rotary, norm: QKNorm) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, T, K, G+2, D]; return q [B, T, K*G, D] and k [B, T, K, D] rotated and normalised,
    and v [B, T, K, D] as it is.
    """
    q, k, v = split_qkv(qkv)
    q = rotate_and_norm(q, rotary, norm.query_weight, norm.eps)
    k = rotate_and_norm(k, rotary, norm.key_weight, norm.eps)
    return q, k, v
