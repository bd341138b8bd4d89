"""Mixture of experts against the reference implementation, and against a dense oracle."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kit.model.moe import MoE, gated_mlp
from kit.model.transformer import DecoderLayer


def dense_oracle(moe: MoE, x: Tensor) -> Tensor:
    """Every expert on every token in float64, weighted by the router (zero where not chosen)."""
    tokens = x.flatten(0, 1).double()
    probabilities = F.softmax(tokens @ moe.gate.wg.weight.double().T, dim=-1)
    kept = probabilities.topk(moe.gate.top_k, dim=-1)
    weights = torch.zeros_like(probabilities).scatter(1, kept.indices, kept.values)
    weights /= weights.sum(-1, keepdim=True)
    out = gated_mlp(
        tokens,
        moe.shared_mlp.gate_and_up_proj.weight.double(),
        moe.shared_mlp.down_proj.weight.double(),
    )
    for expert in range(weights.shape[1]):
        y = gated_mlp(
            tokens,
            moe.experts.gate_and_up_proj[expert].double(),
            moe.experts.down_proj[expert].double(),
        )
        out = out + weights[:, expert, None] * y
    return out.view_as(x)


def random_moe(*, num_experts: int = 8, top_k: int = 2, num_shared: int = 2) -> MoE:
    moe = MoE(64, 32, num_experts, top_k, num_shared)
    generator = torch.Generator().manual_seed(3)
    for parameter in moe.parameters():
        scale = 1 / math.sqrt(parameter.shape[-1])
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return moe


def tokens_of(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, 64, generator=torch.Generator().manual_seed(4))


def test_router_against_reference(golden: dict[str, Tensor], golden_layer: DecoderLayer) -> None:
    logits: list[Tensor] = []
    router = golden_layer.mlp.gate
    handle = router.wg.register_forward_hook(lambda _m, _a, out: logits.append(out))
    weights, indices = router(golden["moe.in"].flatten(0, 1))
    handle.remove()
    torch.testing.assert_close(logits[0], golden["moe.router_logits"], rtol=0, atol=1e-5)
    assert indices.int().equal(golden["moe.topk_index"])
    torch.testing.assert_close(weights, golden["moe.topk_weight"], rtol=0, atol=1e-6)


def test_experts_against_reference(golden: dict[str, Tensor], golden_layer: DecoderLayer) -> None:
    moe, x = golden_layer.mlp, golden["moe.in"]
    expert0 = gated_mlp(x, moe.experts.gate_and_up_proj[0], moe.experts.down_proj[0])
    torch.testing.assert_close(expert0, golden["moe.expert0_out"], rtol=0, atol=1e-5)
    torch.testing.assert_close(moe.shared_mlp(x), golden["moe.shared_out"], rtol=0, atol=1e-5)
    torch.testing.assert_close(moe(x), golden["moe.out"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("num_experts", "top_k", "num_shared"), [(8, 2, 2), (4, 4, 1), (5, 1, 3), (64, 8, 1)]
)
def test_moe_against_dense_oracle(num_experts: int, top_k: int, num_shared: int) -> None:
    moe = random_moe(num_experts=num_experts, top_k=top_k, num_shared=num_shared)
    x = tokens_of(2, 37)
    torch.testing.assert_close(moe(x), dense_oracle(moe, x).float(), rtol=0, atol=1e-5)


def test_experts_see_their_own_tokens_only() -> None:
    moe = random_moe()
    x = tokens_of(1, 50)
    clean = moe(x)
    _, indices = moe.gate(x[0])
    moe.experts.down_proj[3] = math.nan
    spoilt = moe(x)[0].isnan().any(-1)
    assert spoilt.equal((indices == 3).any(-1))
    assert 0 < spoilt.sum() < 50
    assert moe(x)[0][~spoilt].equal(clean[0][~spoilt])


def test_expert_without_tokens_is_skipped() -> None:
    moe = random_moe()
    # Logits of the first two experts far above the others for every token.
    moe.gate.wg.weight.zero_()
    moe.gate.wg.weight[:2, 0] = torch.tensor([50.0, 49.0])
    x = tokens_of(1, 20)
    x[..., 0] = 1.0
    _, indices = moe.gate(x[0])
    assert indices.unique().tolist() == [0, 1]
    torch.testing.assert_close(moe(x), dense_oracle(moe, x).float(), rtol=0, atol=1e-5)


def test_a_row_does_not_depend_on_the_others() -> None:
    moe = random_moe()
    x = tokens_of(2, 40)
    together = moe(x)
    torch.testing.assert_close(together[:1], moe(x[:1]), rtol=0, atol=1e-6)
    assert moe(x).equal(together)


def test_router_stays_float32_in_a_bfloat16_model() -> None:
    moe = random_moe().bfloat16()
    moe.gate.float()
    x = tokens_of(1, 30).bfloat16()
    seen: list[Tensor] = []
    moe.gate.register_forward_hook(lambda _m, _a, out: seen.extend(out))
    out = moe(x)
    weights, indices = seen
    assert out.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    logits = x[0].double() @ moe.gate.wg.weight.double().T
    assert indices.equal(logits.topk(2).indices)
    # Better than bfloat16 logits could give: those are off by up to 2^-9 of their size.
    expected = logits.softmax(-1).topk(2).values
    expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-6)
    relative = (out.double() - dense_oracle(moe, x)).norm() / out.double().norm()
    assert relative < 0.01
