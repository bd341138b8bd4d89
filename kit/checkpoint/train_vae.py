"""The autoencoder's training: pictures in, the same pictures out, through narrow latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kit.checkpoint.chunks import Size
from kit.checkpoint.devices import autocast, compiled
from kit.checkpoint.flat_vae import FlatVAE, norm_silu
from kit.checkpoint.initial import init_vae
from kit.checkpoint.muon import Optimizer, kernel_matrices
from kit.checkpoint.preset import VAETraining
from kit.checkpoint.replay import Replayed
from kit.checkpoint.schedule import Schedule
from kit.model.vae import VAEDecoder
from kit.model.vae_encoder import VAEEncoder
from kit.modelspec.config import VAEConfig

_BETAS = (0.9, 0.99)
_ENDS = ("conv_in", "conv_out")
_NUM_AT_ONCE = 16
"""Pictures of one pass where nothing is learnt."""


@dataclass(frozen=True)
class PixelPool:
    """Pictures of one size on the device, seen through a window."""

    pixels: Tensor
    """uint8 [N, height, width, 3]."""

    window: Size
    odds: float = 1.0
    """How often it is drawn from, beside other pools."""

    def draw(self, num: int, choice: torch.Generator) -> Tensor:
        """Return float32 [num, 3, *window] in [-1, 1], all through the window at one place.

        `choice` is a generator of the CPU.
        """
        (height, width), (tall, wide) = self.pixels.shape[1:3], self.window
        top = int(torch.randint(height - tall + 1, (), generator=choice))
        left = int(torch.randint(width - wide + 1, (), generator=choice))
        at = torch.randint(len(self.pixels), (num,), generator=choice).to(self.pixels.device)
        return to_unit(self.pixels[at, top : top + tall, left : left + wide])


def to_unit(pixels: Tensor) -> Tensor:
    """Turn uint8 [N, height, width, 3] into float32 [N, 3, height, width] in [-1, 1]."""
    return (pixels.permute(0, 3, 1, 2).float() / 127.5) - 1


class VAETrainee:
    """Encoder, decoder, their data and their loss."""

    def __init__(
        self,
        config: VAEConfig,
        training: VAETraining,
        pools: Sequence[PixelPool],
        *,
        seed: int,
    ) -> None:
        device = pools[0].pixels.device
        torch.manual_seed(seed)
        self.encoder, self.decoder = VAEEncoder(config), VAEDecoder(config)
        for module in (self.encoder, self.decoder):
            init_vae(module)
            module.to(device)
        self.flat = FlatVAE(self.encoder, self.decoder, compiled(norm_silu, device))
        self.schedule = Schedule(
            training.num_warmup_steps, training.flat_share, training.final_lr_scale
        )
        self._training = training
        self._pools = pools
        self._odds = torch.tensor([pool.odds for pool in pools])
        self._choice = torch.Generator().manual_seed(seed)
        self._optimizer = _optimizer((self.encoder, self.decoder), training)
        self._step = Replayed(self._learn)

    def warm_up(self) -> None:
        """Take a step of each shape at rate 0, so that compiling and recording is done."""
        self._optimizer.set_lr_scale(0.0)
        for pool in {pool.window: pool for pool in self._pools}.values():
            self._step(pool.draw(self._training.batch_size, self._choice))

    def step(self, lr_scale: float) -> dict[str, Tensor]:
        at = int(torch.multinomial(self._odds, 1, generator=self._choice))
        pixels = self._pools[at].draw(self._training.batch_size, self._choice)
        self._optimizer.set_lr_scale(lr_scale)
        return self._step(pixels)

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"vae.{part}.{name}": tensor
            for part, module in (("encoder", self.encoder), ("decoder", self.decoder))
            for name, tensor in module.state_dict().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])

    def _learn(self, pixels: Tensor) -> dict[str, Tensor]:
        """Take a step on float32 [B, 3, height, width]."""
        with autocast(pixels.device):
            mean, logvar = self.flat.encode(pixels)
            z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
            decoded = self.flat.decode(z)
        losses = self._losses(pixels, decoded, mean, logvar, z)
        torch.autograd.backward(losses["loss"])
        self._optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def _losses(
        self, pixels: Tensor, decoded: Tensor, mean: Tensor, logvar: Tensor, z: Tensor
    ) -> dict[str, Tensor]:
        training = self._training
        error = decoded - pixels
        l1, mse = error.abs().mean(), error.square().mean()
        edge = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        std, centre = torch.std_mean(z, dim=(0, 2, 3))
        moments = ((std - 1).square() + centre.square()).mean()
        loss = (
            l1
            + training.mse_weight * mse
            + training.edge_weight * edge
            + training.kl_weight * kl
            + training.moment_weight * moments
        )
        # Pixels span 2.
        psnr = -10 * torch.log10(error.square().mean((1, 2, 3)) / 4).mean()
        return {"loss": loss, "l1": l1, "edge": edge, "kl": kl, "moments": moments, "psnr": psnr}


def _optimizer(modules: tuple[nn.Module, ...], training: VAETraining) -> Optimizer:
    inner = [
        child for module in modules for name, child in module.named_children() if name not in _ENDS
    ]
    matrices = list(kernel_matrices(inner))
    taken = {id(m.parameter) for m in matrices}
    others = [p for module in modules for p in module.parameters() if id(p) not in taken]
    return Optimizer(
        matrices,
        others,
        matrix_learning_rate=training.matrix_learning_rate,
        learning_rate=training.learning_rate,
        betas=_BETAS,
    )


@torch.no_grad()
def psnr(flat: FlatVAE, pixels: Tensor) -> Tensor:
    """Return the PSNR in dB of each of uint8 [N, height, width, 3], decoded from the mean
    latents and rounded to 8 bits, float32 [N].
    """
    found = []
    for batch in torch.split(pixels, _NUM_AT_ONCE):
        decoded = flat.decode(flat.encode(to_unit(batch))[0])
        shown = (decoded / 2 + 0.5).clamp(0, 1).mul(255).round()
        error = shown - batch.permute(0, 3, 1, 2).float()
        found.append(10 * torch.log10(255**2 / error.square().mean((1, 2, 3)).clamp_min(1e-9)))
    return torch.cat(found)


@torch.no_grad()
def measure_latents(flat: FlatVAE, pool: PixelPool, num: int) -> Tensor:
    """Return the mean and the standard deviation of sampled latents, all channels together."""
    parts = []
    for batch in torch.split(pool.pixels[:num], _NUM_AT_ONCE):
        mean, logvar = flat.encode(to_unit(batch))
        parts.append(mean + torch.exp(0.5 * logvar) * torch.randn_like(mean))
    return torch.stack(torch.std_mean(torch.cat(parts))).flip(0)


def round_to_bfloat16(module: nn.Module) -> None:
    """Give every parameter the value that it has in the exported checkpoint, in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
