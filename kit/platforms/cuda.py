"""NVIDIA cards: what the driver says of them, without torch, and what this process holds there."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from kit.errors import UnsupportedError
from kit.platforms.memory import CardMemory
from kit.telemetry.accelerators import command_output

_FIELDS = ("index", "uuid", "name", "compute_cap", "memory.total", "memory.free")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """One card as the driver describes it."""

    index: int
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


class CudaPlatform:
    """A Platform: one card."""

    name = "cuda"
    collective_backend = "nccl"

    def __init__(self, ordinal: int) -> None:
        """`ordinal` counts the cards that this process may see.

        Raises UnsupportedError when there is none of this number.
        """
        gpus = visible_gpus()
        if ordinal >= len(gpus):
            seen = ", ".join(f"{i}: {gpu.name}" for i, gpu in enumerate(gpus)) or "none"
            raise UnsupportedError(
                f"stages[0].devices: there is no accelerator {ordinal}; NVIDIA cards that this "
                f"process sees: {seen} ({_VISIBLE} {os.environ.get(_VISIBLE, 'not set')}). Name "
                "another, or set devices: cpu"
            )
        self.ordinal, self._gpu = ordinal, gpus[ordinal]

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """As in Platform."""
        return self._gpu.compute_capability

    def memory(self) -> CardMemory:
        """As the driver said when this object was made."""
        return CardMemory(self._gpu.total_bytes, self._gpu.free_bytes)

    def peak_memory_bytes(self) -> int:
        """Most bytes that tensors of this process took together."""
        return int(self._torch.cuda.max_memory_allocated(self.ordinal))

    def synchronize(self) -> None:
        """Wait for the card."""
        self._torch.cuda.synchronize(self.ordinal)

    @cached_property
    def _torch(self) -> Any:
        # By name and late: the engine asks about cards before torch is imported.
        return import_module("torch")


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the cards that CUDA shows this process, in its order; () without a driver."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    return choose_visible(parse_gpus(command_output(query) or ""), os.environ.get(_VISIBLE))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read nvidia-smi's CSV of the fields above; lines of another form are left out."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            index, uuid, name, capability, total, free = row
            major, minor = map(int, capability.split("."))
            total_bytes, free_bytes = int(float(total)) << 20, int(float(free)) << 20
            gpus.append(Gpu(int(index), uuid, name, (major, minor), total_bytes, free_bytes))
        except ValueError:
            continue
    return tuple(gpus)


def choose_visible(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Apply CUDA_VISIBLE_DEVICES: indices or prefixes of UUIDs; it ends at the first unknown."""
    if visible is None:
        return gpus
    chosen = []
    for part in visible.split(","):
        name = part.strip()
        found = [
            gpu for gpu in gpus if name and (str(gpu.index) == name or gpu.uuid.startswith(name))
        ]
        if len(found) != 1:
            break
        chosen.append(found[0])
    return tuple(chosen)
