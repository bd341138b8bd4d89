"""The initial noise of a seed, the same on every platform."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_noise(seed: int, channels: int, grid: tuple[int, int]) -> Tensor:
    """Return bfloat16 [1, channels, h, w] on the CPU.

    Drawn on the CPU whatever device runs the model: CUDA and NPU generators give other streams. In
    float32, then rounded: the reference's bfloat16 draws are the same numbers, but some versions of
    torch draw bfloat16 in another way (2.11 on a processor with AVX512 does).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    shape = (1, channels, *grid)
    noise = torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
    return noise.to(torch.bfloat16)
