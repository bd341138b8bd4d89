"""How the ranks of a worker group share one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["tensor", "ulysses", "cfg"]


@dataclass(frozen=True)
class Place:
    """Where a rank stands on each axis."""

    tensor: int
    ulysses: int
    cfg: int


@dataclass(frozen=True)
class Topology:
    """Ranks along each axis. `tensor` varies fastest, so its peers are the closest devices."""

    tensor: int = 1
    """Ranks that share every weight matrix."""

    ulysses: int = 1
    """Ranks that exchange heads for tokens around attention."""

    cfg: int = 1
    """Ranks that run one CFG row each."""

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.tensor * self.ulysses * self.cfg

    def place(self, rank: int) -> Place:
        """Return where `rank` stands."""
        assert 0 <= rank < self.size, f"rank {rank} is not one of {self.size}"
        rest, tensor = divmod(rank, self.tensor)
        cfg, ulysses = divmod(rest, self.ulysses)
        return Place(tensor, ulysses, cfg)

    def peers(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` on `axis` only, itself included, in order."""
        stride = {"tensor": 1, "ulysses": self.tensor, "cfg": self.tensor * self.ulysses}[axis]
        first = rank - getattr(self.place(rank), axis) * stride
        return tuple(first + at * stride for at in range(getattr(self, axis)))

    def __str__(self) -> str:
        """Return it as it is written in logs and tables: TP2+SP2, or "one rank"."""
        parts = (("TP", self.tensor), ("SP", self.ulysses), ("CFG", self.cfg))
        return "+".join(f"{name}{size}" for name, size in parts if size > 1) or "one rank"


ONE_RANK = Topology()
