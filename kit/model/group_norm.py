"""Group norm with its learned weights, of the autoencoder and the convolutional blocks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

NUM_GROUPS = 32


class GroupNorm(nn.GroupNorm):
    """Normalises [B, C, ...] over groups of neighbouring channels."""

    def __init__(self, num_channels: int, eps: float) -> None:
        super().__init__(NUM_GROUPS, num_channels, eps)
        self.fused = False
        """Run the kit's Triton kernel; see kit.model.fused."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm, of x's shape and dtype; float32 inside."""
        return self._fused(x, silu=False) if self.fused else super().forward(x)

    def silu(self, x: Tensor) -> Tensor:
        """Return silu(forward(x))."""
        return self._fused(x, silu=True) if self.fused else F.silu(super().forward(x))

    def _fused(self, x: Tensor, *, silu: bool) -> Tensor:
        from kit.kernels.group_norm import group_norm

        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps, silu=silu)
