"""The denoiser's training: flow matching between cached latents and noise."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kit.checkpoint.devices import autocast, compiled
from kit.checkpoint.dit_forward import TrainingForward, layer_forward
from kit.checkpoint.initial import init_transformer
from kit.checkpoint.latents import LatentPool
from kit.checkpoint.muon import Optimizer, linear_matrices
from kit.checkpoint.preset import LONG_SIZES, NAMED_SIZES, SQUARE, DiTTraining, Shape
from kit.checkpoint.schedule import Schedule
from kit.checkpoint.training_rows import Size
from kit.model.moe import Router
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import ModelConfig

_BETAS = (0.9, 0.95)
_EMA_PREFIX = "ema."


class DiTTrainee:
    """The denoiser, its average over time, its data and its loss."""

    def __init__(
        self,
        config: ModelConfig,
        shape: Shape,
        training: DiTTraining,
        pools: Mapping[Size, LatentPool],
        *,
        seed: int,
    ) -> None:
        device = pools[SQUARE].mean.device
        torch.manual_seed(seed)
        self.model = HunyuanImage3(config)
        init_transformer(self.model)
        self.model.to(device)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.schedule = Schedule(
            training.num_warmup_steps, training.flat_share, training.final_lr_scale
        )
        self._config, self._training, self._pools = config, training, pools
        self._forward = TrainingForward(
            self.model, shape.sequence_slots, compiled(layer_forward, device)
        )
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._choice = torch.Generator().manual_seed(seed)
        self._sizes = list(pools)
        self._odds = torch.tensor([_odds(size, pools, training) for size in self._sizes])
        self._optimizer = _optimizer(self.model, training)
        self._num_steps = 0

    def warm_up(self) -> None:
        """Take a step at rate 0, so that compiling is done."""
        self.step(0.0)

    def step(self, lr_scale: float) -> dict[str, Tensor]:
        training, generator = self._training, self._generator
        at = int(torch.multinomial(self._odds, 1, generator=self._choice))
        batch = self._pools[self._sizes[at]].draw(
            training.batch_size,
            self._config.vae.scaling_factor,
            training.caption_dropout,
            generator,
        )
        device = batch.latents.device
        sigmas = draw_sigmas(training, generator)
        noise = torch.randn(batch.latents.shape, device=device, generator=generator)
        level = sigmas[:, None, None, None]
        noisy = torch.lerp(batch.latents, noise, level)
        with autocast(device):
            velocity, balance = self._forward(noisy, sigmas, batch.prefixes, batch.lengths)
        errors = (velocity - (noise - batch.latents)).square().mean((1, 2, 3))
        torch.autograd.backward(errors.mean() + training.balance_weight * balance)
        self._optimizer.set_lr_scale(lr_scale)
        self._optimizer.step()
        self._update_average()
        losses = {"loss": errors.detach().mean(), "balance": balance.detach()}
        for quarter in range(4):
            inside = (sigmas * 4).floor().clamp(max=3) == quarter
            share = inside.float() / inside.sum().clamp_min(1)
            losses[f"loss_quarter_{quarter}"] = (errors.detach() * share).sum()
        return losses

    def tensors(self) -> dict[str, Tensor]:
        return state_tensors(self.model, self.average)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[name])
                self.average[name].copy_(tensors[f"{_EMA_PREFIX}{name}"])
        self._num_steps = round(10 / (1 - self._training.ema_decay))

    @torch.no_grad()
    def _update_average(self) -> None:
        self._num_steps += 1
        # Early weights are forgotten fast.
        decay = min(self._training.ema_decay, self._num_steps / (self._num_steps + 9))
        weights: list[Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)


def draw_sigmas(training: DiTTraining, generator: torch.Generator) -> Tensor:
    """Draw noise levels float32 [batch_size] in (0, 1), shifted as sampling shifts them."""
    num, device = training.batch_size, generator.device
    normal = torch.randn(num, device=device, generator=generator).sigmoid()
    uniform = torch.rand(num, device=device, generator=generator)
    evenly = torch.rand(num, device=device, generator=generator) < training.share_uniform
    s = torch.where(evenly, uniform, normal)
    return training.flow_shift * s / (1 + (training.flow_shift - 1) * s)


def export_dtypes(model: HunyuanImage3, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round tensors named as the model's parameters to bfloat16, but for its routers'."""
    routers = {id(p) for m in model.modules() if isinstance(m, Router) for p in m.parameters()}
    return {
        name: tensors[name] if id(parameter) in routers else tensors[name].bfloat16()
        for name, parameter in model.named_parameters()
    }


def state_tensors(model: HunyuanImage3, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a state holds: weights in float32, averages as they are exported."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    rounded = export_dtypes(model, average)
    return weights | {f"{_EMA_PREFIX}{name}": tensor for name, tensor in rounded.items()}


def averaged_model(tensors: Mapping[str, Tensor], config: ModelConfig) -> HunyuanImage3:
    """Return the denoiser of a state's averaged weights, float32 on the CPU."""
    model = HunyuanImage3(config).requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.copy_(tensors[f"{_EMA_PREFIX}{name}"])
    return model


def _odds(size: Size, pools: Mapping[Size, LatentPool], training: DiTTraining) -> float:
    if size == SQUARE:
        return training.share_square
    if size in LONG_SIZES:
        return training.share_long / len(LONG_SIZES)
    if size in NAMED_SIZES:
        return training.share_named / (len(NAMED_SIZES) - len(LONG_SIZES))
    num_other = sum(other != SQUARE and other not in NAMED_SIZES for other in pools)
    shown = training.share_square + training.share_long + training.share_named
    return (1 - shown) / num_other


def _optimizer(model: HunyuanImage3, training: DiTTraining) -> Optimizer:
    routed = [m for m in model.model.layers.modules() if isinstance(m, Router)]
    rounds = {id(p) for router in routed for p in router.parameters()}
    matrices = [m for m in linear_matrices([model.model.layers]) if id(m.parameter) not in rounds]
    taken = {id(m.parameter) for m in matrices}
    return Optimizer(
        matrices,
        [p for p in model.parameters() if id(p) not in taken],
        matrix_learning_rate=training.matrix_learning_rate,
        learning_rate=training.learning_rate,
        betas=_BETAS,
        weight_decay=training.weight_decay,
    )
