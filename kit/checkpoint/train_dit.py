"""The denoiser's training: flow matching between cached latents and noise.

With edits it trains what reads reference images beside it: every step then sees a batch of captions
and a batch of edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from kit.checkpoint.chunks import Size
from kit.checkpoint.devices import autocast, compiled
from kit.checkpoint.dit_forward import TrainingForward, layer_forward
from kit.checkpoint.export import export_dtypes
from kit.checkpoint.initial import init_transformer
from kit.checkpoint.latents import EditPool, LatentBatch, LatentPool
from kit.checkpoint.muon import Optimizer, linear_matrices
from kit.checkpoint.preset import (
    LONG_SIZES,
    NAMED_SIZES,
    SQUARE,
    DiTTraining,
    EditTraining,
    Shape,
)
from kit.checkpoint.schedule import Schedule
from kit.checkpoint.vision_reader import VisionReader, init_reader
from kit.model.moe import Router
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import ModelConfig

_BETAS = (0.9, 0.95)
_EMA_PREFIX = "ema."

M = TypeVar("M", bound=nn.Module)


class Pool(Protocol):
    """Encoded pictures of one size."""

    def draw(
        self, num: int, scaling_factor: float, dropout: float, generator: torch.Generator
    ) -> LatentBatch: ...


@dataclass(frozen=True)
class _Stream:
    """One kind of row, and how a batch of it is drawn."""

    name: str
    """What its losses begin with in the log."""

    pools: Mapping[Size, Pool]
    odds: Tensor
    """float32 [pools]."""

    batch_size: int


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
        edits: Mapping[Size, EditPool] | None = None,
        edit_training: EditTraining | None = None,
    ) -> None:
        """Start from random weights; with `edits` there is a vision reader to train, too."""
        device = pools[SQUARE].mean.device
        torch.manual_seed(seed)
        self.model = HunyuanImage3(config)
        init_transformer(self.model)
        self.model.to(device)
        self.reader: VisionReader | None = None
        self._streams = [_stream("", pools, training)]
        if edits is not None:
            assert edit_training is not None, "edits have settings"
            self.reader = VisionReader(config)
            init_reader(self.reader)
            self.reader.to(device)
            self._streams.append(_stream("edit_", edits, edit_training))
        self.parameters = dict(self.model.named_parameters())
        """All that is trained, by name."""

        if self.reader is not None:
            self.parameters |= dict(self.reader.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.schedule = Schedule(
            training.num_warmup_steps, training.flat_share, training.final_lr_scale
        )
        self._config, self._training = config, training
        self._forward = TrainingForward(
            self.model,
            shape.sequence_slots,
            compiled(layer_forward, device),
            reader=self.reader,
            num_edit_slots=shape.edit_slots,
        )
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._choice = torch.Generator().manual_seed(seed)
        self._optimizer = _optimizer(self.model, self.reader, training)
        self._num_steps = 0

    def warm_up(self) -> None:
        """Take a step at rate 0, so that compiling is done."""
        self.step(0.0)

    def step(self, lr_scale: float) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for stream in self._streams:
            losses |= self._learn(stream)
        self._optimizer.set_lr_scale(lr_scale)
        self._optimizer.step()
        self._update_average()
        return losses

    def tensors(self) -> dict[str, Tensor]:
        return state_tensors(self.parameters, self.average)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.begin_with(tensors)
        self._num_steps = round(10 / (1 - self._training.ema_decay))

    def begin_with(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights that a state of fewer parts has; the others stay as they are."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if name in tensors:
                    parameter.copy_(tensors[name])
                    self.average[name].copy_(tensors[f"{_EMA_PREFIX}{name}"])

    def _learn(self, stream: _Stream) -> dict[str, Tensor]:
        """Add the gradients of one batch; returns its losses."""
        training, generator = self._training, self._generator
        at = int(torch.multinomial(stream.odds, 1, generator=self._choice))
        batch = list(stream.pools.values())[at].draw(
            stream.batch_size,
            self._config.vae.scaling_factor,
            training.caption_dropout,
            generator,
        )
        device = batch.latents.device
        sigmas = draw_sigmas(training, stream.batch_size, generator)
        noise = torch.randn(batch.latents.shape, device=device, generator=generator)
        level = sigmas[:, None, None, None]
        noisy = torch.lerp(batch.latents, noise, level)
        with autocast(device):
            velocity, balance = self._forward(
                noisy, sigmas, batch.texts, batch.lengths, batch.reference
            )
        errors = (velocity - (noise - batch.latents)).square().mean((1, 2, 3))
        torch.autograd.backward(errors.mean() + training.balance_weight * balance)
        losses = {"loss": errors.detach().mean(), "balance": balance.detach()}
        for quarter in range(4):
            inside = (sigmas * 4).floor().clamp(max=3) == quarter
            share = inside.float() / inside.sum().clamp_min(1)
            losses[f"loss_quarter_{quarter}"] = (errors.detach() * share).sum()
        return {f"{stream.name}{name}": loss for name, loss in losses.items()}

    @torch.no_grad()
    def _update_average(self) -> None:
        self._num_steps += 1
        # Early weights are forgotten fast.
        decay = min(self._training.ema_decay, self._num_steps / (self._num_steps + 9))
        weights: list[Tensor] = list(self.parameters.values())
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)


def draw_sigmas(training: DiTTraining, num: int, generator: torch.Generator) -> Tensor:
    """Draw noise levels float32 [num] in (0, 1), shifted as sampling shifts them."""
    device = generator.device
    normal = torch.randn(num, device=device, generator=generator).sigmoid()
    uniform = torch.rand(num, device=device, generator=generator)
    evenly = torch.rand(num, device=device, generator=generator) < training.share_uniform
    s = torch.where(evenly, uniform, normal)
    return training.flow_shift * s / (1 + (training.flow_shift - 1) * s)


def state_tensors(
    parameters: Mapping[str, nn.Parameter], average: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return what a state holds: weights in float32, averages as they are exported."""
    weights: dict[str, Tensor] = {name: p.detach() for name, p in parameters.items()}
    return weights | {f"{_EMA_PREFIX}{name}": t for name, t in export_dtypes(average).items()}


def averaged_model(tensors: Mapping[str, Tensor], config: ModelConfig) -> HunyuanImage3:
    """Return the denoiser of a state's averaged weights, float32 on the CPU."""
    return _averaged(HunyuanImage3(config), tensors)


def averaged_reader(tensors: Mapping[str, Tensor], config: ModelConfig) -> VisionReader:
    """Return the vision reader of a state's averaged weights, float32 on the CPU."""
    return _averaged(VisionReader(config), tensors)


def _averaged(module: M, tensors: Mapping[str, Tensor]) -> M:
    module.requires_grad_(False)
    for name, parameter in module.named_parameters():
        parameter.copy_(tensors[f"{_EMA_PREFIX}{name}"])
    return module


def _stream(name: str, pools: Mapping[Size, Pool], training: DiTTraining | EditTraining) -> _Stream:
    sizes = list(pools)
    odds = torch.tensor([_odds(size, sizes, training) for size in sizes])
    return _Stream(name, pools, odds, training.batch_size)


def _odds(size: Size, sizes: list[Size], training: DiTTraining | EditTraining) -> float:
    if size == SQUARE:
        return training.share_square
    if size in LONG_SIZES:
        return training.share_long / len(LONG_SIZES)
    if size in NAMED_SIZES:
        return training.share_named / (len(NAMED_SIZES) - len(LONG_SIZES))
    num_other = sum(other != SQUARE and other not in NAMED_SIZES for other in sizes)
    shown = training.share_square + training.share_long + training.share_named
    return (1 - shown) / num_other


def _optimizer(
    model: HunyuanImage3, reader: VisionReader | None, training: DiTTraining
) -> Optimizer:
    inside: list[nn.Module] = [model.model.layers]
    parameters = list(model.parameters())
    if reader is not None:
        inside += reader.matrix_modules()
        parameters += reader.parameters()
    routed = [m for m in model.model.layers.modules() if isinstance(m, Router)]
    rounds = {id(p) for router in routed for p in router.parameters()}
    matrices = [m for m in linear_matrices(inside) if id(m.parameter) not in rounds]
    taken = {id(m.parameter) for m in matrices}
    return Optimizer(
        matrices,
        [p for p in parameters if id(p) not in taken],
        matrix_learning_rate=training.matrix_learning_rate,
        learning_rate=training.learning_rate,
        betas=_BETAS,
        weight_decay=training.weight_decay,
    )
