"""Tier A: norms, gates and expert layers in an emulation of an NPU's operators, against torch's."""

from __future__ import annotations

import logging

import npu_emulation
import npu_faults
import pytest
import torch
import torch.distributed as dist
from fia_emulation import CALLS
from host_waits import Waits
from torch import Tensor

from kit.attention.ascend.trial import PART_LIMIT
from kit.model.fused import expert_layer
from kit.model.moe import MoE
from kit.model.norm import RMSNorm
from kit.model.npu import random_layer, try_all, use_npu_operators
from kit.model.shard import Shard
from kit.parallel.group import RankGroup

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    npu_emulation.install(monkeypatch.setitem)


def random_moe() -> MoE:
    torch.manual_seed(1)
    moe = MoE(32, 16, num_experts=4, top_k=2, num_shared=1)
    for parameter in moe.parameters():
        parameter.requires_grad_(False).copy_(0.3 * torch.randn(parameter.shape))
    return moe


def test_expert_layer_against_torch() -> None:
    moe, x = random_moe(), torch.randn(2, 7, 32)
    wanted = moe(x)
    assert expert_layer(moe) == "loop"
    use_npu_operators(moe, CPU, torch.float32)
    assert expert_layer(moe) == "grouped"
    CALLS.clear()
    torch.testing.assert_close(moe(x), wanted, rtol=1e-5, atol=1e-5)
    assert [name for name, _ in CALLS] == [
        "top_k_softmax",
        "init_routing",
        "grouped_matmul",
        "swiglu",
        "grouped_matmul",
        "unpermute",
        "swiglu",  # the shared expert's
    ]


def test_the_router_stays_in_float32() -> None:
    layer = random_layer(CPU, torch.bfloat16)
    x = torch.randn(2, 50, 256).bfloat16()
    wanted = layer(x)
    use_npu_operators(layer, CPU, torch.bfloat16)
    CALLS.clear()
    out = layer(x)
    assert CALLS[0] == ("top_k_softmax", {"dtype": torch.float32})
    assert out.dtype == torch.bfloat16
    assert float((out - wanted).float().norm() / wanted.float().norm()) < PART_LIMIT


def test_an_expert_without_tokens_and_one_with_all() -> None:
    moe, x = random_moe(), torch.randn(1, 9, 32)
    moe.gate.wg.weight.zero_()
    moe.gate.wg.weight[1, 0] = 40.0
    moe.gate.wg.weight[3, 0] = 20.0
    x[..., 0] = 1.0
    wanted = moe(x)
    use_npu_operators(moe, CPU, torch.float32)
    torch.testing.assert_close(moe(x), wanted, rtol=1e-5, atol=1e-5)


def test_no_expert_layer_waits_for_the_host() -> None:
    moe, x = random_moe(), torch.randn(2, 7, 32)
    with Waits() as loop:
        moe(x)
    assert loop.seen == ["aten::bincount"]
    use_npu_operators(moe, CPU, torch.float32)
    with Waits() as grouped:
        moe(x)
    assert grouped.seen == []


def test_a_rank_of_whole_experts_runs_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    group = dist.ProcessGroup(1, 2)  # type: ignore[call-arg]  # torch's stub wants a store
    shard = Shard(tensor=RankGroup(1, 2, group), whole_experts=True)
    layer = MoE(32, 16, num_experts=4, top_k=2, num_shared=2, shard=shard)
    with caplog.at_level(logging.WARNING, "kit"):
        use_npu_operators(layer, CPU, torch.float32)
    assert "expert layer runs in plain torch: ranks that hold whole experts" in caplog.text
    assert layer.grouped is None


@pytest.mark.parametrize("branch", ["experts", "shared_mlp"])
def test_the_order_of_the_halves_matters(branch: str) -> None:
    """As if the weights had been left in the order of the checkpoint."""
    moe, x = random_moe(), torch.randn(2, 7, 32)
    wanted = moe(x)
    use_npu_operators(moe, CPU, torch.float32)
    part = getattr(moe, branch)
    right = part.gate
    part.gate = lambda halves: right(halves.roll(16, dims=-1))
    assert (moe(x) - wanted).abs().max() > 0.1


def test_norm_against_torch() -> None:
    norm, x = RMSNorm(64, 0.5), torch.randn(3, 64).bfloat16()
    norm.bfloat16().weight.requires_grad_(False).copy_(torch.randn(64))
    wanted = norm(x)
    use_npu_operators(norm, CPU, torch.bfloat16)
    CALLS.clear()
    out = norm(x.expand(2, 3, 64))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wanted.expand(2, 3, 64), rtol=2**-6, atol=1e-3)
    # A large eps: one that is not handed on shows.
    assert (RMSNorm(64, 1e-6)(x.float()) - wanted.float() / norm.weight).abs().max() > 0.1
    assert [name for name, _ in CALLS] == ["rms_norm"]


def test_right_operators_pass_and_are_told() -> None:
    trials = try_all(CPU, torch.bfloat16)
    assert [trial.name for trial in trials] == list(npu_faults.FAULTS)
    for trial in trials:
        assert trial.problem is None
        assert trial.relative_error is not None
        assert 0 < trial.relative_error < PART_LIMIT / 2


class Layer(torch.nn.Module):
    """A norm before an expert layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = RMSNorm(32, 1e-5), random_moe()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.norm(x))
        return out


@pytest.mark.parametrize(("part", "name", "fault"), npu_faults.CASES)
def test_a_part_that_does_not_pass_runs_in_plain_torch(
    part: str,
    name: str,
    fault: npu_faults.Fault | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer, x = Layer(), torch.randn(2, 7, 32)
    wanted = layer(x)
    npu_faults.plant(monkeypatch, name, fault)
    with caplog.at_level(logging.INFO, "kit"):
        use_npu_operators(layer, CPU, torch.float32)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [warning.split(" runs in plain torch: ")[0] for warning in warnings] == [part]
    if fault is None:
        assert f"has no {name}" in warnings[0]
    runs = {"norm", "gate", "expert layer"} - {part}
    assert all(f"{other} runs on torch-npu's operators" in caplog.text for other in runs)
    # Whatever runs where, the layer is right.
    torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-5)
    assert expert_layer(layer) == ("loop" if part == "expert layer" else "grouped")
