"""Rotation and norm of queries and keys in an NPU's operators, in float32 as everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kit.attention.ascend.operators import Prepare
from kit.attention.ascend.trial import Trial, relative_error, try_part
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv, split_qkv

_OPERATORS = ("npu_rotary_mul", "npu_rms_norm")


def prepare_on(rotate: Callable[..., Tensor], rms_norm: Callable[..., Any]) -> Prepare:
    """Return `prepare_qkv` on torch-npu's operators."""

    def turn(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor, eps: float) -> Tensor:
        # "half": pairs are (j, j + D/2).
        turned = rotate(x.float(), cos, sin, rotary_mode="half")
        return rms_norm(turned, weight.float(), epsilon=eps)[0].to(x.dtype)  # type: ignore[no-any-return]

    def prepare(qkv: Tensor, rotary: Rotary, norm: QKNorm) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = split_qkv(qkv)
        cos, sin = (x[None, :, None] for x in (rotary.cos, rotary.sin))  # [1, T, 1, D]
        q = turn(q, cos, sin, norm.query_weight, norm.eps)
        return q, turn(k.contiguous(), cos, sin, norm.key_weight, norm.eps), v

    return prepare


def try_rotation(device: torch.device, head_dim: int) -> Trial[Prepare]:
    """Try it on two rows at the model's head size."""

    def measure(prepare: Prepare) -> float:
        generator = torch.Generator().manual_seed(0)

        def random(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator).bfloat16().to(device)

        norm = QKNorm(random(head_dim), random(head_dim), 1e-5)
        angles = (3 * random(300, head_dim // 2).float()).repeat(1, 2)
        rotary = Rotary(angles.cos(), angles.sin())
        qkv = random(2, 300, 2, 4, head_dim)
        pairs = zip(prepare(qkv, rotary, norm), prepare_qkv(qkv.float(), rotary, norm), strict=True)
        return max(relative_error(seen, wanted) for seen, wanted in pairs)

    return try_part("rotation", _OPERATORS, prepare_on, measure)
