"""Which rows of a request a rank runs."""

from __future__ import annotations

from dataclasses import dataclass

from kit.parallel.group import ALONE, RankGroup


@dataclass(frozen=True)
class RowShare:
    """The rows of a request, and the ranks that share them."""

    num_rows: int
    """Of the request, on all ranks together."""

    ranks: RankGroup
    """Each has as many rows; together they have them all, in the order of ranks."""

    @property
    def num_own(self) -> int:
        """Rows that this rank runs."""
        return self.num_rows // self.ranks.size

    @property
    def own(self) -> slice:
        """This rank's rows among those of the request."""
        first = self.ranks.rank * self.num_own
        return slice(first, first + self.num_own)


def share_rows(num_rows: int, cfg: RankGroup) -> RowShare:
    """Share the rows of a request; a single row runs on every rank, and none waits for another."""
    if num_rows == 1:
        return RowShare(1, ALONE)
    assert num_rows % cfg.size == 0, "two ranks share two rows"
    return RowShare(num_rows, cfg)
