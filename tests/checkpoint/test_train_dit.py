"""The denoiser's training: noise levels, data, average, and going on."""

from __future__ import annotations

import pytest
import torch

from kit.checkpoint.latents import EditPool, LatentPool
from kit.checkpoint.preset import TOY
from kit.checkpoint.train_dit import (
    DiTTrainee,
    averaged_model,
    averaged_reader,
    draw_sigmas,
)
from kit.model.loader import official_views
from kit.modelspec.config import ModelConfig
from kit.tokenizer.layout import ReferenceSpan

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


def edit_pool(num: int = 5) -> EditPool:
    """Square edits: the sources' latents are near 3, the targets' near -3."""
    mean = torch.full((num, 2, 16, 16, 16), 3.0)
    mean[:, 1] = -3.0
    span = ReferenceSpan(5, latent_grid=(16, 16), patch_grid=(4, 4), num_patch_tokens=16)
    rows = (torch.full((num, 2, 40), token) for token in (7, 8))
    return EditPool(
        mean=mean.bfloat16(),
        std=torch.full_like(mean, 0.01).bfloat16(),
        patches=torch.full((num, 64, 64, 3), 255, dtype=torch.uint8),
        texts=torch.stack(tuple(rows), dim=2).short(),
        lengths=torch.full((num, 2), 30).short(),
        head=torch.arange(span.end + 1),
        span=span,
        patch_size=16,
    )


@pytest.fixture
def editing(toy_config: ModelConfig) -> DiTTrainee:
    pools = {(256, 256): pool((16, 16))}
    return DiTTrainee(
        toy_config,
        TOY.shape,
        TOY.edit.text,
        pools,
        seed=3,
        edits={(256, 256): edit_pool()},
        edit_training=TOY.edit,
    )


def test_drawn_edits() -> None:
    batch = edit_pool().draw(300, 2.0, 0.25, torch.Generator().manual_seed(4))
    assert batch.reference is not None
    assert batch.latents.mean().item() == pytest.approx(-6, abs=0.01)
    assert batch.reference.latents.mean().item() == pytest.approx(6, abs=0.01)
    # Drawn from the posterior, each on its own.
    assert batch.reference.latents.std().item() == pytest.approx(0.02, rel=0.1)
    assert batch.reference.patches.shape == (300, 16, 768)
    assert batch.reference.patches.unique().tolist() == [1.0]
    dropped = (batch.texts[:, 0] == 8).float().mean()
    assert dropped.item() == pytest.approx(0.25, abs=0.08)


def test_a_step_sees_captions_and_edits(editing: DiTTrainee) -> None:
    """Tower, aligner and denoiser move, and the log tells the two losses apart."""
    assert editing.reader is not None
    before = {name: p.detach().clone() for name, p in editing.parameters.items()}
    for _ in range(3):
        # At first the last convolution is zero, and no gradient passes it.
        losses = editing.step(1.0)
    assert {"loss", "balance", "edit_loss", "edit_balance", "edit_loss_quarter_0"} < set(losses)
    assert all(loss.isfinite() for loss in losses.values())
    still = [name for name, p in editing.parameters.items() if torch.equal(p, before[name])]
    assert still == []
    assert set(dict(editing.reader.named_parameters())) < set(editing.parameters)


def test_the_reader_learns_from_edits_alone(editing: DiTTrainee) -> None:
    editing.step(1.0)
    text, edits = editing._streams
    assert editing.reader is not None
    editing._learn(text)
    assert all(p.grad is None for p in editing.reader.parameters())
    editing._learn(edits)
    assert all(p.grad is not None for p in editing.reader.parameters())


def test_training_begins_with_weights_of_captions_alone(
    trainee: DiTTrainee, editing: DiTTrainee
) -> None:
    trainee.step(1.0)
    assert editing.reader is not None
    random_reader = [p.detach().clone() for p in editing.reader.parameters()]
    editing.begin_with(trainee.tensors())
    for name, parameter in trainee.model.named_parameters():
        assert torch.equal(editing.parameters[name], parameter)
        assert torch.equal(editing.average[name], trainee.tensors()[f"ema.{name}"].float())
    for parameter, before in zip(editing.reader.parameters(), random_reader, strict=True):
        assert torch.equal(parameter, before)


def test_a_state_with_a_reader_is_taken_over(editing: DiTTrainee, toy_config: ModelConfig) -> None:
    editing.step(1.0)
    saved = {name: tensor.clone() for name, tensor in editing.tensors().items()}
    editing.step(1.0)
    editing.load(saved)
    assert all(torch.equal(p, saved[name]) for name, p in editing.parameters.items())
    for name, parameter in averaged_reader(saved, toy_config).named_parameters():
        assert torch.equal(parameter, saved[f"ema.{name}"].float())
        assert saved[f"ema.{name}"].dtype == torch.bfloat16


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
