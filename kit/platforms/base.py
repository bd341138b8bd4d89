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

    def free_memory_bytes(self) -> int:
        """Bytes that can be allocated now."""
        ...

    def peak_memory_bytes(self) -> int:
        """Most bytes that this process held on the device so far."""
        ...
