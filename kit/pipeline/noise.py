"""The initial noise of a seed, the same on every platform."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_noise(seed: int, channels: int, grid: tuple[int, int]) -> Tensor:
    """Return bfloat16 [1, channels, h, w] on the CPU.

    Drawn on the CPU whatever device runs the model: CUDA and NPU generators give other streams.
    The reference draws in bfloat16 too, so the values are float32 draws rounded to bfloat16.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    shape = (1, channels, *grid)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.bfloat16)
