"""Which kind of accelerator this machine has."""

from __future__ import annotations

from kit.platforms.base import Platform
from kit.platforms.cpu import CpuPlatform
from kit.platforms.cuda import CudaPlatform, visible_gpus


def platform_name() -> str:
    """Return the name of the `platforms:` section that applies on this machine."""
    return "cuda" if visible_gpus() else "cpu"


def open_platform(device_ids: tuple[int, ...]) -> Platform:
    """Return the platform of the first of the accelerators; no ids mean the CPU.

    Raises UnsupportedError when there is no such accelerator.
    """
    return CudaPlatform(device_ids[0]) if device_ids else CpuPlatform()
