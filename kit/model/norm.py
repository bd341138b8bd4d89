"""RMS norm with its learned weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kit.attention.rotary import rms_norm

Norm = Callable[[Tensor, Tensor, float], Tensor]
"""Of x [..., dim], weight [dim] and eps."""


class RMSNorm(nn.Module):
    """y = weight * x / rms(x) over the last axis; float32 inside, x's dtype outside."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.fused = False
        """Run the kit's Triton kernel; see kit.model.fused."""

        self.compute: Norm = rms_norm
        """Where the Triton kernel does not run."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., dim]; same shape and dtype."""
        if self.fused:
            from kit.kernels import norm

            return norm.rms_norm(x, self.weight, self.eps)
        return self.compute(x, self.weight, self.eps)
