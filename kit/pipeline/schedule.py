"""The official flow-matching schedule with its Euler update."""

from __future__ import annotations

import torch
from torch import Tensor


def flow_sigmas(num_steps: int, shift: float) -> Tensor:
    """Return float32 [num_steps + 1], from 1 down to 0.

    s_i = 1 - i/n, sigma_i = shift * s_i / (1 + (shift - 1) * s_i). This is not the spacing of
    diffusers' FlowMatchEulerDiscreteScheduler, which shifts twice and never reaches the same
    last step (HunyuanImage-3.0 reference scheduler).
    """
    s = torch.linspace(1.0, 0.0, num_steps + 1, dtype=torch.float32)
    return shift * s / (1.0 + (shift - 1.0) * s)


def flow_timesteps(sigmas: Tensor) -> Tensor:
    """Return the timestep of every step, float32 [num_steps], 1000 at the first."""
    return sigmas[:-1] * 1000.0


def clean_estimate(latents: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """Return x - sigma * v, all float32: where the latents end if v stays as it is."""
    return latents - sigma * velocity


def preview_steps(num_steps: int, num_previews: int) -> frozenset[int]:
    """Steps (1 for the first) after which a preview is due: evenly spaced, never the last one.

    At most `num_previews`, fewer where a request has too few steps.
    """
    spaced = {j * num_steps // (num_previews + 1) for j in range(1, num_previews + 1)}
    return frozenset(spaced - {0})


def euler_step(latents: Tensor, velocity: Tensor, sigma: Tensor, next_sigma: Tensor) -> Tensor:
    """Return x + (next_sigma - sigma) * v, all float32; v points from data to noise."""
    return latents + (next_sigma - sigma) * velocity
