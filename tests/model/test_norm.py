"""RMS norm against the reference implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.model.norm import RMSNorm
from kit.model.transformer import DecoderLayer


def test_norm_against_reference(golden: dict[str, Tensor], golden_layer: DecoderLayer) -> None:
    out = golden_layer.input_layernorm(golden["rmsnorm.in"])
    torch.testing.assert_close(out, golden["rmsnorm.out"], rtol=0, atol=1e-5)


def test_norm_of_bfloat16_is_rounded_once_before_the_weight() -> None:
    torch.manual_seed(0)
    norm = RMSNorm(64, 1e-5).bfloat16()
    norm.weight.copy_(torch.randn(64))
    x = torch.randn(3, 64).bfloat16()
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    out = norm(x)
    assert out.dtype == torch.bfloat16
    assert out.equal(exact.float().bfloat16() * norm.weight)
