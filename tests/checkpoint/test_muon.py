"""The optimizer: what it orthogonalises, what it leaves alone, and that it descends."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kit.checkpoint.muon import Optimizer, kernel_matrices, linear_matrices, orthogonalise
from kit.model.clip_conv import ClipConv3d
from kit.model.moe import Experts, MoE


@pytest.mark.parametrize("shape", [(3, 16, 64), (2, 64, 16), (1, 32, 32)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_a_zero_gradient_moves_nothing() -> None:
    assert not orthogonalise(torch.zeros(1, 4, 8)).any()


def test_experts_are_single_matrices() -> None:
    moe = MoE(hidden_size=8, width=4, num_experts=3, top_k=2, num_shared=1)
    found = {id(m.parameter): (m.num, m.rows, m.columns) for m in linear_matrices([moe])}
    experts = moe.experts
    assert isinstance(experts, Experts)
    assert found[id(experts.gate_and_up_proj)] == (3, 8, 8)
    assert found[id(experts.down_proj)] == (3, 8, 4)
    assert found[id(moe.shared_mlp.down_proj.weight)] == (1, 8, 4)


def test_it_descends_and_leaves_outer_slices_alone() -> None:
    torch.manual_seed(2)
    kernel, linear = ClipConv3d(4, 6), nn.Linear(5, 3)
    with torch.no_grad():
        kernel.weight.normal_()
        kernel.bias.zero_()
    outer = kernel.weight[:, :, 0].detach().clone()
    matrices = [*kernel_matrices([kernel]), *linear_matrices([linear])]
    optimizer = Optimizer(
        matrices,
        [kernel.bias, linear.bias],
        matrix_learning_rate=0.05,
        learning_rate=0.05,
        betas=(0.9, 0.95),
    )
    x, y = torch.randn(8, 4, 1, 5, 5), torch.randn(8, 5)

    def loss() -> torch.Tensor:
        total: torch.Tensor = (kernel(x) - 1).square().mean() + (linear(y) - 1).square().mean()
        return total

    before = loss().item()
    optimizer.set_lr_scale(1.0)
    for _ in range(40):
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.7 * before
    assert torch.equal(kernel.weight[:, :, 0], outer)


def test_rate_zero_changes_nothing() -> None:
    linear = nn.Linear(4, 4)
    before = [p.detach().clone() for p in linear.parameters()]
    optimizer = Optimizer(
        linear_matrices([linear]),
        [linear.bias],
        matrix_learning_rate=1.0,
        learning_rate=1.0,
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    optimizer.set_lr_scale(0.0)
    linear(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    for old, new in zip(before, linear.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad is None
