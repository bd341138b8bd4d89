"""What the rest of the kit may ask about the machine it runs on."""

from __future__ import annotations

from typing import Protocol

from kit.platforms.memory import Memory


class Platform(Protocol):
    """One kind of device."""

    @property
    def name(self) -> str:
        """Its section name in `platforms:`, e.g. cpu."""
        ...

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """Of an NVIDIA card, e.g. (9, 0); None elsewhere."""
        ...

    @property
    def collective_backend(self) -> str:
        """What torch.distributed calls the library that joins several of these devices."""
        ...

    def memory(self) -> Memory:
        """What can be allocated now."""
        ...

    def peak_memory_bytes(self) -> int:
        """Most bytes that this process held on the device so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        ...
