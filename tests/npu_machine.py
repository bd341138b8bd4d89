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
BOARD = """\
\tNPU ID                         : {card}
\tProduct Name                   : some card
\tModel                          : NA
\tSoftware Version               : 25.2.0
\tFirmware Version               : 7.7.0.6.236
\tPCIe Bus Info                  : 0000:C1:00.0
"""
CHIP = """\
\tNPU ID                         : {card}
\tChip ID                        : 0
\tChip Type                      : Ascend
\tChip Name                      : 910B3
"""
MEMORY = """\
\tNPU ID                         : {card}
\tChip Count                     : 1

\tDDR Capacity(MB)               : 0
\tHBM Capacity(MB)               : 65536
\tHBM Clock Speed(MHz)           : 1600
"""
SAID = {"info -l": LISTING} | {
    f"info -t {kind} -i {card}{chip}": text.format(card=card)
    for card in (0, 5)
    for kind, chip, text in (("board", "", BOARD), ("board", " -c 0", CHIP), ("memory", "", MEMORY))
}
"""What npu-smi answers, as its documents show it."""

GIB = 1 << 30


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put npu-smi on the path and torch_npu among the modules; returns who was waited for."""
    command = folder / "npu-smi"
    cases = "".join(f"'{asked}') printf '%s' '{said}' ;;\n" for asked, said in SAID.items())
    command.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 1 ;;\nesac\n')
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
