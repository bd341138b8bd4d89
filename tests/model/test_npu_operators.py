"""Tier A: norms and gates of the model in an emulation of an NPU's operators, against torch's."""

from __future__ import annotations

import fia_emulation
import pytest
import torch
from fia_emulation import CALLS

from kit.errors import UnsupportedError
from kit.model.moe import MoE
from kit.model.norm import RMSNorm
from kit.model.npu import load_model_operators, use_npu_operators


@pytest.fixture(autouse=True)
def _torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    fia_emulation.install(monkeypatch.setitem)


def random_moe() -> MoE:
    torch.manual_seed(1)
    moe = MoE(32, 16, num_experts=4, top_k=2, num_shared=1)
    for parameter in moe.parameters():
        parameter.requires_grad_(False).copy_(0.3 * torch.randn(parameter.shape))
    return moe


def test_expert_layer_against_torch() -> None:
    moe, x = random_moe(), torch.randn(2, 7, 32)
    wanted = moe(x)
    use_npu_operators(moe, load_model_operators())
    torch.testing.assert_close(moe(x), wanted, rtol=1e-5, atol=1e-5)
    assert len(CALLS) == 1 + 4
    assert {name for name, _ in CALLS} == {"swiglu"}


@pytest.mark.parametrize("branch", ["experts", "shared_mlp"])
def test_the_order_of_the_halves_matters(branch: str) -> None:
    """As if the weights had been left in the order of the checkpoint."""
    moe, x = random_moe(), torch.randn(2, 7, 32)
    wanted = moe(x)
    operators = load_model_operators()
    use_npu_operators(moe, operators)
    getattr(moe, branch).gate = lambda halves: operators.swiglu(halves.roll(16, dims=-1))
    assert (moe(x) - wanted).abs().max() > 0.1


def test_norm_against_torch() -> None:
    norm, x = RMSNorm(64, 0.5), torch.randn(3, 64).bfloat16()
    norm.bfloat16().weight.requires_grad_(False).copy_(torch.randn(64))
    wanted = norm(x)
    use_npu_operators(norm, load_model_operators())
    out = norm(x.expand(2, 3, 64))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wanted.expand(2, 3, 64), rtol=2**-6, atol=1e-3)
    # A large eps: one that is not handed on shows.
    assert (RMSNorm(64, 1e-6)(x.float()) - wanted.float() / norm.weight).abs().max() > 0.1
    assert [name for name, _ in CALLS] == ["rms_norm"]


def test_a_missing_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fia_emulation.installed()
    monkeypatch.delattr(module, "npu_swiglu")
    with pytest.raises(UnsupportedError, match="has no npu_swiglu"):
        load_model_operators()
