"""What the rest of the kit may ask about the machine it runs on."""

from __future__ import annotations

from typing import Protocol


class Platform(Protocol):
    """One kind of device."""

    @property
    def name(self) -> str:
        """Its section name in `platforms:`, e.g. cpu."""
        ...

    @property
    def default_dtype(self) -> str:
        """The dtype that `dtype: auto` means."""
        ...

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """Of an NVIDIA card, e.g. (9, 0); None elsewhere."""
        ...

    def free_memory_bytes(self) -> int:
        """Bytes that can be allocated now."""
        ...

    def pool_bytes(self, room: int, utilization: float) -> int:
        """Bytes that the automatic page pool may take of `room`, which nothing else needs."""
        ...

    def peak_memory_bytes(self) -> int:
        """Most bytes that this process held on the device so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        ...
