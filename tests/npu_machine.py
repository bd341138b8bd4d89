"""A machine that seems to have two NPUs: a listing of the driver, and what torch-npu would say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import npu_emulation
import pytest

LISTING = """\
\tTotal Count                    : 2

\tNPU ID                         : 0
\tProduct Name                   : some card
\tChip Count                     : 1

\tNPU ID                         : 5
\tBoard ID                       : 0x02
"""
GIB = 1 << 30


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put npu-smi on the path and torch_npu among the modules; returns who was waited for."""
    command = folder / "npu-smi"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{LISTING}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    npu_emulation.install(monkeypatch.setitem)
    waited: list[int] = []
    npu = SimpleNamespace(
        device_count=lambda: 2,
        mem_get_info=lambda ordinal: ((60 + ordinal) * GIB, 64 * GIB),
        max_memory_allocated=lambda ordinal: 7 + ordinal,
        synchronize=waited.append,
    )
    npu_emulation.installed().__dict__["npu"] = npu
    return waited
