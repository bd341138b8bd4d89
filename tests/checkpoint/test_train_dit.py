"""The denoiser's training: noise levels, data, average, and going on."""

from __future__ import annotations

import pytest
import torch

from kit.checkpoint.latents import LatentPool
from kit.checkpoint.preset import TOY
from kit.checkpoint.train_dit import DiTTrainee, averaged_model, draw_sigmas
from kit.model.loader import official_views
from kit.modelspec.config import ModelConfig

SLOTS = 352


def pool(grid: tuple[int, int], num: int = 6) -> LatentPool:
    generator = torch.Generator().manual_seed(1)
    return LatentPool(
        mean=torch.randn(num, 16, *grid, generator=generator).bfloat16(),
        std=torch.full((num, 16, *grid), 0.01).bfloat16(),
        prefixes=torch.stack(
            (torch.full((num, 2, 95), 7), torch.full((num, 2, 95), 8)), dim=2
        ).short(),
        lengths=torch.full((num, 2), 30).short(),
    )


@pytest.fixture
def trainee(toy_config: ModelConfig) -> DiTTrainee:
    pools = {(256, 256): pool((16, 16)), (192, 320): pool((12, 20))}
    return DiTTrainee(toy_config, TOY.shape, TOY.dit, pools, seed=3)


def test_noise_levels_are_shifted_towards_noise() -> None:
    sigmas = draw_sigmas(TOY.dit, 20000, torch.Generator().manual_seed(2))
    assert sigmas.min() > 0
    assert sigmas.max() < 1
    # The median of both distributions is 1/2, which the shift of 3 moves to 3/4.
    assert sigmas.median().item() == pytest.approx(0.75, abs=0.01)


def test_drawn_batches() -> None:
    generator = torch.Generator().manual_seed(4)
    some = pool((16, 16))
    batch = some.draw(400, 2.0, 0.25, generator)
    assert batch.latents.shape == (400, 16, 16, 16)
    # Scaled by 2, and near one of the stored means.
    distance = (batch.latents[0] - 2 * some.mean.float()).flatten(1).abs().amax(1)
    assert distance.min() < 0.2
    dropped = (batch.texts[:, 0] == 8).float().mean()
    assert dropped.item() == pytest.approx(0.25, abs=0.08)
    assert batch.lengths.unique().tolist() == [30]


def test_a_step_learns_and_averages(trainee: DiTTrainee) -> None:
    before = {name: p.detach().clone() for name, p in trainee.model.named_parameters()}
    losses = trainee.step(1.0)
    assert {"loss", "balance"} < set(losses)
    last = "final_layer.model.1.2.weight"
    now = dict(trainee.model.named_parameters())[last].detach()
    assert not torch.equal(now, before[last])
    # The first step counts for nine tenths.
    torch.testing.assert_close(trainee.average[last], before[last].lerp(now, 0.9))


def test_warming_up_changes_no_weight(trainee: DiTTrainee) -> None:
    before = {name: p.detach().clone() for name, p in trainee.model.named_parameters()}
    trainee.warm_up()
    assert all(torch.equal(p, before[name]) for name, p in trainee.model.named_parameters())


def test_a_state_is_taken_over(trainee: DiTTrainee, toy_config: ModelConfig) -> None:
    trainee.step(1.0)
    saved = {name: tensor.clone() for name, tensor in trainee.tensors().items()}
    trainee.step(1.0)
    trainee.load(saved)
    for name, parameter in trainee.model.named_parameters():
        assert torch.equal(parameter, saved[name])
    model = averaged_model(saved, toy_config)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, saved[f"ema.{name}"].float())
        is_router = name.endswith(".gate.wg.weight")
        assert saved[f"ema.{name}"].dtype == (torch.float32 if is_router else torch.bfloat16)
    assert len(dict(official_views(model))) > len(dict(model.named_parameters()))
