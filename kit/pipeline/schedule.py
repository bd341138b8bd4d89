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


def euler_step(latents: Tensor, velocity: Tensor, sigma: Tensor, next_sigma: Tensor) -> Tensor:
    """Return x + (next_sigma - sigma) * v, all float32; v points from data to noise."""
    return latents + (next_sigma - sigma) * velocity
