"""Which kind of accelerator this machine has."""

from __future__ import annotations

from kit.errors import UnsupportedError
from kit.platforms.ascend import AscendPlatform
from kit.platforms.base import Platform
from kit.platforms.cpu import CpuPlatform
from kit.platforms.cuda import CudaPlatform, visible_gpus
from kit.platforms.memory import HostMemory, Memory
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


def device_memory(device_ids: tuple[int, ...], num_ranks: int) -> Memory:
    """Return what each rank may draw from.

    All take as much, so it is the accelerator with the least free, or a rank's share of the host.
    Raises UnsupportedError when an accelerator is not there, or they are of different kinds.
    """
    if not device_ids:
        free = open_platform(()).memory().free_bytes
        return HostMemory(free // num_ranks)
    platforms = [open_platform((device_id,)) for device_id in device_ids]
    kinds = {platform.compute_capability for platform in platforms}
    if len(kinds) > 1:
        raise UnsupportedError(
            "stages[0].devices: the accelerators differ, their compute capabilities are "
            f"{', '.join(sorted(map(str, kinds)))}; name accelerators of one kind"
        )
    memories = [platform.memory() for platform in platforms]
    return min(memories, key=lambda memory: memory.free_bytes)
