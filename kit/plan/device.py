"""The device of a plan: one that is here, or a card by its name or its memory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from kit.config.deploy import DeployConfig
from kit.errors import ConfigError, UnsupportedError, flag_error
from kit.platforms.detect import device_memory, open_platform, platform_name
from kit.platforms.memory import CardMemory, HostMemory, Memory

_MIB = 1 << 20
_HOPPER = (9, 0)


PlatformName = Literal["cpu", "cuda", "npu"]


@dataclass(frozen=True)
class Card:
    """An accelerator as its vendor sells it."""

    platform: PlatformName
    total_bytes: int
    """As the driver reports it, all of it free."""

    compute_capability: tuple[int, int] | None = None


# Reported by nvidia-smi and npu-smi in MiB; the H200's by the machine of our records.
CARDS: Mapping[str, Card] = {
    "H200": Card("cuda", 143_771 * _MIB, _HOPPER),
    "H100": Card("cuda", 81_559 * _MIB, _HOPPER),
    "H20": Card("cuda", 97_871 * _MIB, _HOPPER),
    "B200": Card("cuda", 183_359 * _MIB, (10, 0)),
    "A100-80G": Card("cuda", 81_920 * _MIB, (8, 0)),
    "A100-40G": Card("cuda", 40_960 * _MIB, (8, 0)),
    "L40S": Card("cuda", 46_068 * _MIB, (8, 9)),
    "ASCEND-910B": Card("npu", 65_536 * _MIB),
}


@dataclass(frozen=True)
class Device:
    """What a rank runs on, as far as memory and kernels depend on it."""

    name: str
    platform: PlatformName
    memory: Memory
    compute_capability: tuple[int, int] | None
    is_planned: bool
    """It is somewhere else: what is installed here says nothing about it."""


def find_card(name: str) -> Card:
    """Return a card by its name, in any case; raises ConfigError with the nearest ones."""
    card = CARDS.get(name.upper())
    if card is None:
        near = difflib.get_close_matches(name.upper(), CARDS, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            "--card",
            "is not a card that the kit knows",
            value=name,
            remedy=f"{guess}known are {', '.join(CARDS)}; for others give --memory",
        )
    return card


def section_platform(card: str | None) -> str:
    """Return the name of the `platforms:` section that applies to a plan."""
    return platform_name() if card is None else find_card(card).platform


def choose_device(config: DeployConfig, card: str | None, memory_bytes: int | None) -> Device:
    """Return the device of every rank: the named one, or what `devices` means on this machine.

    memory_bytes: of each Hopper card where `devices` names accelerators, of the host on the CPU.
    Raises ConfigError where they contradict `devices`, or there is no such device here.
    """
    if card is not None and memory_bytes is not None:
        raise ConfigError(
            "--memory", "stands beside --card", value=memory_bytes, remedy="give one of them"
        )
    if memory_bytes is not None and memory_bytes < 1:
        raise ConfigError("--memory", "is no memory", value=memory_bytes, remedy="give bytes")
    if not config.stage.device_ids:
        return _host(config, card, memory_bytes)
    if card is not None:
        known = find_card(card)
        memory = CardMemory(known.total_bytes, known.total_bytes)
        capability = known.compute_capability
        return Device(card.upper(), known.platform, memory, capability, is_planned=True)
    if memory_bytes is not None:
        memory = CardMemory(memory_bytes, memory_bytes)
        return Device("a Hopper card", "cuda", memory, _HOPPER, is_planned=True)
    try:
        platform = open_platform(config.stage.device_ids)
    except UnsupportedError as error:
        raise ConfigError(
            "stages[0].devices",
            f"names accelerators that are not here: {error}",
            value=config.stage.devices,
            source=config.provenance["stage.devices"],
            remedy=f"name the card with --card ({', '.join(CARDS)}) or give --memory",
        ) from error
    name = f"{platform.name}:{config.stage.devices}"
    kind = cast(PlatformName, platform.name)
    least = device_memory(config.stage.device_ids, config.stage.parallel_config.world_size)
    return Device(name, kind, least, platform.compute_capability, is_planned=False)


def _host(config: DeployConfig, card: str | None, memory_bytes: int | None) -> Device:
    if card is not None:
        raise flag_error(
            "--card",
            "the deployment runs on the CPU",
            card,
            "name accelerators in devices (set by "
            f"{config.provenance['stage.devices']}), or give --memory",
        )
    free = open_platform(()).memory().free_bytes if memory_bytes is None else memory_bytes
    # The ranks of a CPU deployment share one memory.
    memory = HostMemory(free // config.stage.parallel_config.world_size)
    return Device("CPU", "cpu", memory, None, is_planned=memory_bytes is not None)
