"""Rotation and QK norm, against complex numbers and the official implementation's numbers."""

from __future__ import annotations

import pytest
import torch
from golden_cases import GOLDEN
from safetensors.torch import load_file

from kit.attention.rotary import QKNorm, Rotary, prepare_qkv, rms_norm, rotate, split_qkv


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def rotary() -> Rotary:
    angles = (3 * draw(5, 4, seed=1)).repeat(1, 2)
    return Rotary(angles.cos(), angles.sin())


def test_rotate_is_a_complex_product(rotary: Rotary) -> None:
    x = draw(2, 5, 3, 8)
    turn = torch.complex(rotary.cos[:, :4], rotary.sin[:, :4])[:, None]
    z = torch.complex(x[..., :4], x[..., 4:]) * turn
    torch.testing.assert_close(rotate(x, rotary), torch.cat((z.real, z.imag), -1))


def test_split_takes_key_and_value_behind_each_group() -> None:
    kv_heads, group = 2, 3
    numbers = torch.arange(kv_heads * (group + 2), dtype=torch.float32)
    qkv = numbers.view(1, 1, kv_heads, group + 2, 1)
    q, k, v = split_qkv(qkv)
    assert q.flatten().tolist() == [0, 1, 2, 5, 6, 7]
    assert k.flatten().tolist() == [3, 8]
    assert v.flatten().tolist() == [4, 9]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prepare_rotates_first_and_rounds_once(rotary: Rotary, dtype: torch.dtype) -> None:
    qkv = draw(2, 5, 2, 5, 8).to(dtype)
    norm = QKNorm((1 + draw(8, seed=2)).to(dtype), (1 + draw(8, seed=3)).to(dtype), 1e-5)
    before = qkv.clone()
    q, k, v = prepare_qkv(qkv, rotary, norm)
    assert torch.equal(qkv, before), "the input stays as it is"
    wanted_q, wanted_k, wanted_v = split_qkv(qkv)
    for got, x, weight in ((q, wanted_q, norm.query_weight), (k, wanted_k, norm.key_weight)):
        turned = rotate(x.float(), rotary)
        exact = rms_norm(turned, weight.float(), norm.eps)
        assert got.dtype == dtype
        if dtype == torch.float32:
            torch.testing.assert_close(got, exact)
        else:  # one rounding: at most half a unit of the last of 8 bits
            assert bool(((got.float() - exact).abs() <= exact.abs() * 2**-8 * 1.001).all())
        other_order = rotate(rms_norm(x.float(), weight.float(), norm.eps), rotary)
        assert not torch.allclose(got.float(), other_order, atol=0.05)
    assert torch.equal(v, wanted_v)


def test_norm_follows_the_official_rotation() -> None:
    """q and k of the official attention module: after rotation, and after its norm."""
    golden = load_file(GOLDEN / "modules.safetensors")
    for name in ("q", "k"):
        turned, final = golden[f"attn.{name}_after_rope"], golden[f"attn.{name}_final"]
        normed = rms_norm(turned, torch.ones(turned.shape[-1]), 1e-5)
        weight = final / normed  # the norm's weight: one vector over all tokens and heads
        torch.testing.assert_close(
            weight, weight[:1, :1, :1].expand_as(weight), rtol=1e-4, atol=1e-4
        )
