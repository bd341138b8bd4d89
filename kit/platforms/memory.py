"""How much of a device's memory there is, and how much of it the kit may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Memory(Protocol):
    """The memory that one rank draws from."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int: ...

    def allowed_bytes(self, utilization: float) -> int:
        """Most bytes that weights, keys and values and working memory may take together."""
        ...

    def pool_bytes(self, room: int, utilization: float) -> int:
        """Bytes that the automatic page pool may take of `room`, which nothing else needs."""
        ...


@dataclass(frozen=True)
class HostMemory:
    """Main memory: other programs live there, so fractions are of what is free."""

    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.free_bytes

    def allowed_bytes(self, utilization: float) -> int:  # noqa: ARG002
        """All that is free: the fraction bounds the automatic page pool only."""
        return self.free_bytes

    def pool_bytes(self, room: int, utilization: float) -> int:
        """A fraction of what nothing else needs."""
        return int(room * utilization)


@dataclass(frozen=True)
class CardMemory:
    """The memory of an accelerator."""

    total_bytes: int
    free_bytes: int

    def allowed_bytes(self, utilization: float) -> int:
        """A fraction of the card."""
        return int(self.total_bytes * utilization)

    def pool_bytes(self, room: int, utilization: float) -> int:
        """What nothing else needs, but for the fraction of the card that must stay free."""
        return room - (self.total_bytes - self.allowed_bytes(utilization))
