"""Self-attention of one layer against the reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kit.attention.rotary import Rotary, rotate
from kit.model.transformer import DecoderLayer


def test_attention_against_reference(
    golden: dict[str, Tensor], golden_layer: DecoderLayer, masked_kv: Callable[[Tensor], Any]
) -> None:
    rotary = Rotary(golden["attn.rope_cos"], golden["attn.rope_sin"])
    kv = masked_kv(golden["attn.mask"])
    out = golden_layer.self_attn(golden["attn.in"], rotary, kv)
    layer = golden_layer.self_attn.layer
    for name, written in (("q", kv.queries[layer]), ("k", kv.keys[layer])):
        wanted = golden[f"attn.{name}_final"].transpose(1, 2)  # [B, H, T, D] -> [B, T, H, D]
        torch.testing.assert_close(written, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(out, golden["attn.out"], rtol=0, atol=1e-5)


def test_each_kv_head_holds_its_queries_then_key_then_value(
    golden: dict[str, Tensor], golden_layer: DecoderLayer
) -> None:
    attention, x = golden_layer.self_attn, golden["attn.in"]
    rotary = Rotary(golden["attn.rope_cos"], golden["attn.rope_sin"])
    qkv = attention.qkv_proj(x).view(2, 9, 2, 4, 32)
    q = rotate(qkv[:, :, :, :2].flatten(2, 3), rotary)
    k = rotate(qkv[:, :, :, 2], rotary)
    wanted_q, wanted_k = golden["attn.q_after_rope"], golden["attn.k_after_rope"]
    torch.testing.assert_close(q.transpose(1, 2), wanted_q, rtol=0, atol=1e-5)
    torch.testing.assert_close(k.transpose(1, 2), wanted_k, rtol=0, atol=1e-5)


def test_attention_writes_to_its_own_layer(
    golden: dict[str, Tensor], golden_layer: DecoderLayer, masked_kv: Callable[[Tensor], Any]
) -> None:
    rotary = Rotary(golden["attn.rope_cos"], golden["attn.rope_sin"])
    kv = masked_kv(torch.ones(9, 9))
    golden_layer.self_attn(golden["attn.in"], rotary, kv)
    assert list(kv.keys) == [1]
