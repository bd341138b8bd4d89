"""Triton: RMS norm of a row in one pass, with the arithmetic of kit.attention.rotary.rms_norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _kernel(x, weight, out, dim, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * dim
    lane = tl.arange(0, BLOCK)
    there = lane < dim
    values = tl.load(x + row + lane, mask=there, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / dim + eps)
    # Rounded before the weight, as the official model does.
    normed = (values * scale).to(out.dtype.element_ty).to(tl.float32)
    learned = tl.load(weight + lane, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row + lane, (normed * learned).to(out.dtype.element_ty), mask=there)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * x / rms(x) over the last axis, in the dtype of x."""
    x = x.contiguous()  # rows of one request share their first embeddings by stride 0
    out, dim = torch.empty_like(x), x.shape[-1]
    _kernel[(x.numel() // dim,)](
        x, weight, out, dim, eps, BLOCK=triton.next_power_of_2(dim), num_warps=8
    )
    return out
