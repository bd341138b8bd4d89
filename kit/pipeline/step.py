"""One denoising step as a function of tensors, so that it can be run or replayed from a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kit.attention.base import StepKV
from kit.attention.rotary import Rotary
from kit.model.transformer import HunyuanImage3
from kit.pipeline.guidance import guide
from kit.pipeline.rows import RowShare
from kit.pipeline.schedule import euler_step


@dataclass(frozen=True)
class StepInputs:
    """What changes from step to step and from request to request, all float32 on the device."""

    latents: Tensor
    """[1, C, h, w]."""

    sigma: Tensor
    """[], the noise level here."""

    next_sigma: Tensor
    """[], the noise level after the step."""

    guidance_scale: Tensor
    """[], of classifier-free guidance."""

    timestep: Tensor
    """Sinusoid [1, 256] of sigma * 1000."""

    guidance: Tensor | None
    """Sinusoid [1, 256] of the <guidance> token's value; None for models without the token."""

    timestep_r: Tensor | None
    """Sinusoid [1, 256] of next_sigma * 1000; None for models without the token."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are there, in the order of the fields."""
        for field in fields(self):
            if (tensor := getattr(self, field.name)) is not None:
                yield tensor


@dataclass(frozen=True)
class StepOutputs:
    """What a step computes, float32."""

    prediction: Tensor
    """[B, C, h, w], each row's velocity."""

    velocity: Tensor
    """[1, C, h, w], guided."""

    latents: Tensor
    """[1, C, h, w], after the step."""


def denoise_step(
    model: HunyuanImage3,
    kv: StepKV,
    rotary: Rotary,
    inputs: StepInputs,
    *,
    rows: RowShare,
    prefix: Tensor | None,
) -> StepOutputs:
    """Run one step of this rank's rows; writes their keys and values to `kv`.

    prefix [B, t, hidden], of this rank's rows: the embeddings of what the first step runs before
    the target; None in later steps. The outputs are of all rows, on every rank. Never waits for the
    device.
    """
    target = model.embed_target(inputs.latents, inputs.timestep, inputs.guidance, inputs.timestep_r)
    embeds = target.expand(rows.num_own, -1, -1)
    if prefix is not None:
        embeds = torch.cat((prefix, embeds), dim=1)
    hidden = model(embeds, rotary, kv)
    h, w = inputs.latents.shape[-2:]
    own = model.predict(hidden[:, -h * w :], inputs.timestep, (h, w))
    prediction = rows.ranks.gather(own, 0)
    velocity = guide(prediction, inputs.guidance_scale)
    latents = euler_step(inputs.latents, velocity, inputs.sigma, inputs.next_sigma)
    return StepOutputs(prediction, velocity, latents)
