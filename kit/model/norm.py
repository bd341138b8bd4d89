"""RMS norm with its learned weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kit.attention.rotary import rms_norm


class RMSNorm(nn.Module):
    """y = weight * x / rms(x) over the last axis; float32 inside, x's dtype outside."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., dim]; same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)
