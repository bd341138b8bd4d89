"""The initial noise of a seed, the same on every platform."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.tokenizer.layout import Layout

_GROUP = 16
"""torch draws normal numbers in groups of so many."""


def seed_generator(seed: int) -> torch.Generator:
    """Return the generator of a seed, on the CPU."""
    return torch.Generator(device="cpu").manual_seed(seed)


def noise_generator(seed: int, channels: int, layout: Layout) -> torch.Generator:
    """Return the generator of `seed` after the latents of the layout's references.

    The reference implementation draws them and the noise from one generator, in this order. It is
    advanced by them whatever seed they have, so that the noise does not depend on theirs.
    """
    generator = seed_generator(seed)
    for reference in layout.references:
        draw_posterior(generator, channels, reference.latent_grid)
    return generator


def draw_posterior(generator: torch.Generator, channels: int, grid: tuple[int, int]) -> Tensor:
    """Return float32 [1, channels, h, w] on the CPU: the noise of a reference's latents."""
    return torch.randn(1, channels, *grid, generator=generator)


def draw_noise(generator: torch.Generator, channels: int, grid: tuple[int, int]) -> Tensor:
    """Return bfloat16 [1, channels, h, w] on the CPU.

    Drawn on the CPU whatever device runs the model: CUDA and NPU generators give other streams.
    The reference calls `torch.randn` for bfloat16 as torch 2.13 draws it: rounded float32 groups,
    the last one drawn anew where the count is no multiple of a group. torch 2.11 draws bfloat16
    otherwise, but float32 alike; so groups are drawn here, and a seed means the same on both.
    """
    count = channels * grid[0] * grid[1]
    whole = count if count < _GROUP else count - count % _GROUP
    noise = torch.empty(count)
    noise[:whole] = torch.randn(whole, generator=generator)
    if whole < count:
        noise[-_GROUP:] = torch.randn(_GROUP, generator=generator)
    return noise.to(torch.bfloat16).view(1, channels, *grid)
