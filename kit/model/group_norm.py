"""Group norm with its learned weights, of the autoencoder and the convolutional blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.parallel.strips import ALL_ROWS, Strips

NUM_GROUPS = 32


class GroupNorm(nn.GroupNorm):
    """Normalises [B, C, ...] over groups of neighbouring channels, the rows of all ranks.

    Ranks exchange count, mean and squares about the mean of what each has, float32: these merge
    without loss however far a mean is from zero (Chan, Golub and LeVeque 1979).
    """

    def __init__(self, num_channels: int, eps: float) -> None:
        super().__init__(NUM_GROUPS, num_channels, eps)
        self.fused = False
        """Run the kit's Triton kernel; see kit.model.fused."""

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Return the norm, of x's shape and dtype; float32 inside."""
        if self.fused:
            return self._fused(x, strips, silu=False)
        return super().forward(x) if strips.is_whole else self._of_strips(x, strips)

    def silu(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Return silu(forward(x))."""
        return self._fused(x, strips, silu=True) if self.fused else F.silu(self.forward(x, strips))

    def _fused(self, x: Tensor, strips: Strips, *, silu: bool) -> Tensor:
        from kit.kernels.group_norm import group_norm

        ranks = strips.ranks
        return group_norm(
            x,
            self.num_groups,
            self.weight,
            self.bias,
            self.eps,
            silu=silu,
            num_ranks=ranks.size,
            gather=lambda moments: ranks.gather(moments, 0),
        )

    def _of_strips(self, x: Tensor, strips: Strips) -> Tensor:
        grouped = x.float().reshape(len(x), self.num_groups, -1)
        variance, mean = torch.var_mean(grouped, dim=2, correction=0)
        count = torch.full_like(mean, grouped.shape[2])
        moments = torch.stack((count, mean, variance * count))[None]
        counts, means, squares = strips.ranks.gather(moments, 0).unbind(1)  # [ranks, B, groups]
        total = counts.sum(0)
        middle = (counts * means).sum(0) / total
        spread = (squares + counts * (means - middle) ** 2).sum(0) / total
        scale = torch.rsqrt(spread + self.eps)
        # In place: the map is the largest there is.
        normed = (grouped - middle[..., None]).mul_(scale[..., None]).view(x.shape)
        weight, bias = (
            values.float().view(-1, *(1,) * (x.dim() - 2)) for values in (self.weight, self.bias)
        )
        return normed.mul_(weight).add_(bias).to(x.dtype)
