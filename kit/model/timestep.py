"""Embedding of a scalar: timestep, guidance or end of a step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NUM_FREQUENCIES = 128
MAX_PERIOD = 10000.0


class TimestepEmbedder(nn.Module):
    """An MLP with exact GELU over a scalar's sinusoid, in the weights' dtype."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(2 * NUM_FREQUENCIES, hidden_size),
            nn.GELU(approximate="none"),
            nn.Linear(hidden_size, hidden_size),
        )

    def forward(self, wave: Tensor) -> Tensor:
        """Map the sinusoid float32 [n, 256] of n scalars to [n, hidden]."""
        first = self.mlp[0]
        assert isinstance(first, nn.Linear)
        embedded: Tensor = self.mlp(wave.to(first.weight.dtype))
        return embedded


def sinusoid(t: Tensor) -> Tensor:
    """Return [cos(t*f) | sin(t*f)] of float32 [n], f_i = 10000^(-i/128): float32 [n, 256].

    A timestep is sigma * 1000, unscaled. Cosine first (HunyuanImage-3.0 reference,
    `timestep_embedding`). Made on the CPU for all devices, and with frequencies that are the same
    on every processor: float32 `exp` is not, and t reaches 1000, so the last bit of a frequency
    shows in the result. Takes and returns tensors on the CPU.
    """
    numbers = torch.arange(NUM_FREQUENCIES, dtype=torch.float32)
    exponents = -math.log(MAX_PERIOD) * numbers / NUM_FREQUENCIES
    frequencies = exponents.double().exp().float()
    angles = t.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
