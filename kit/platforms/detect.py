"""Which kind of accelerator this machine has."""

from __future__ import annotations

from kit.platforms.ascend import AscendPlatform
from kit.platforms.base import Platform
from kit.platforms.cpu import CpuPlatform
from kit.platforms.cuda import CudaPlatform, visible_gpus
from kit.telemetry.accelerators import listed_npus


def platform_name() -> str:
    """Return the name of the `platforms:` section that applies on this machine."""
    if visible_gpus():
        return "cuda"
    return "npu" if listed_npus() else "cpu"


def open_platform(device_ids: tuple[int, ...]) -> Platform:
    """Return the platform of the first of the accelerators; no ids mean the CPU.

    Raises UnsupportedError when there is no such accelerator.
    """
    if not device_ids:
        return CpuPlatform()
    # NPUs first: where there are none, the cards are then listed only once, by CudaPlatform.
    if listed_npus() and not visible_gpus():
        return AscendPlatform(device_ids[0])
    return CudaPlatform(device_ids[0])
