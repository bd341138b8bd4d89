"""An image in strips of rows, one a rank, and what a rank needs of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kit.parallel.group import ALONE, RankGroup


@dataclass(frozen=True)
class Strips:
    """Which rows each rank has; in a group of one it has them all and nothing is copied.

    Maps are [..., H, W] with this rank's rows as H, at any multiple of the image's resolution.
    """

    ranks: RankGroup
    heights: tuple[int, ...]
    """Rows of each rank at the resolution that was divided."""

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all rows."""
        return self.ranks.size == 1

    def own(self, image: Tensor) -> Tensor:
        """Return a view of this rank's rows of a whole image."""
        rank = self.ranks.rank
        return image.narrow(-2, sum(self.heights[:rank]), self.heights[rank])

    def padding(self, reach: int) -> int:
        """Return the rows of zeros that a convolution still adds above and below."""
        return reach if self.is_whole else 0

    def with_neighbours(self, x: Tensor, reach: int) -> Tensor:
        """Return x, contiguous, between `reach` rows of the ranks above and below.

        Zeros beyond the image's first and last row. A rank that has all rows gets only them: the
        convolution pads, see `padding`.
        """
        if self.is_whole or reach == 0:
            return x.contiguous()
        above, below = self.ranks.neighbours(torch.stack((x[..., :reach, :], x[..., -reach:, :])))
        return torch.cat((above, x, below), dim=-2)

    def gather_rows(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks."""
        if self.is_whole:
            return x
        scale = x.shape[-2] // self.heights[self.ranks.rank]
        return self.ranks.gather_uneven(x, x.dim() - 2, [scale * rows for rows in self.heights])


ALL_ROWS = Strips(ALONE, ())
"""Of maps that nobody divided."""


def divide_rows(ranks: RankGroup, height: int) -> Strips:
    """Divide `height` rows as evenly as they go; where a rank would get none, all get them all."""
    if height < ranks.size:
        ranks = ALONE
    least, more = divmod(height, ranks.size)
    return Strips(ranks, tuple(least + (rank < more) for rank in range(ranks.size)))
