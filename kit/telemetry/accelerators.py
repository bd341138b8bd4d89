"""What the drivers of accelerators say of them, found out by their commands, without torch.

NVIDIA's was seen at work; npu-smi is read as its documents show it, and never answered us.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic.dataclasses import dataclass

from kit.telemetry.strict import STRICT

_SMI_FIELDS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
_COMMAND_TIMEOUT_S = 20
_NPU_ID, _NUM_CHIPS = "NPU ID", "Chip Count"
_CANN_HOME = "ASCEND_HOME_PATH"
"""Set by CANN's set_env.sh."""


@dataclass(frozen=True, config=STRICT)
class Accelerator:
    """One device as its driver describes it."""

    name: str
    driver: str
    memory_mib: float | None
    """This and the next two are None where the driver does not tell."""

    power_limit_w: float | None
    max_clock_mhz: float | None


def find_accelerators() -> tuple[Accelerator, ...]:
    """Ask every driver that there is."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    return parse_accelerators(command_output(query) or "") + find_npus()


def parse_accelerators(text: str) -> tuple[Accelerator, ...]:
    """Read nvidia-smi's CSV of `_SMI_FIELDS`; lines of another form are left out."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(
        Accelerator(row[0], row[1], *(_number(field) for field in row[2:]))
        for row in rows
        if len(row) == len(_SMI_FIELDS)
    )


def listed_npus() -> tuple[tuple[int, int], ...]:
    """Return the ids that npu-smi lists, and how many NPUs each holds; () without a driver."""
    return parse_npus(command_output(["npu-smi", "info", "-l"]) or "")


def parse_npus(text: str) -> tuple[tuple[int, int], ...]:
    """Read npu-smi's list of cards: (id, chips) of each; lines of another form are left out."""
    cards: list[tuple[int, int]] = []
    for name, value in _pairs(text):
        if name == _NPU_ID and value.isdecimal():
            cards.append((int(value), 1))
        elif name == _NUM_CHIPS and value.isdecimal() and cards:
            cards[-1] = (cards[-1][0], int(value))
    return tuple(cards)


def find_npus() -> tuple[Accelerator, ...]:
    """Ask npu-smi about each NPU."""
    found = []
    for card, num_chips in listed_npus():
        board = _ask_npu("board", "-i", str(card))
        memory = _ask_npu("memory", "-i", str(card))
        for chip in range(num_chips):
            of_chip = _ask_npu("board", "-i", str(card), "-c", str(chip))
            name = of_chip.get("Chip Name") or board.get("Product Name") or "NPU"
            capacity = memory.get("HBM Capacity(MB)") or memory.get("DDR Capacity(MB)") or ""
            driver = board.get("Software Version", "unknown")
            found.append(Accelerator(name, driver, _number(capacity), None, None))
    return tuple(found)


def cann_version() -> dict[str, str]:
    """Return {"cann": version} of the CANN whose set_env.sh was sourced, {} without one."""
    home = os.environ.get(_CANN_HOME)
    if not home:
        return {}
    files = [*Path(home).glob("ascend_*_install.info"), *Path(home).glob("*/ascend_*_install.info")]
    for path in sorted(files):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            name, _, value = line.partition("=")
            if name.strip() == "version" and value.strip():
                return {"cann": value.strip()}
    return {}


def command_output(command: Sequence[str]) -> str | None:
    """Return what a command prints, or None when it is not there, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


def _ask_npu(kind: str, *where: str) -> dict[str, str]:
    text = command_output(["npu-smi", "info", "-t", kind, *where]) or ""
    answers: dict[str, str] = {}
    for name, value in _pairs(text):
        answers.setdefault(name, value)
    return answers


def _pairs(text: str) -> list[tuple[str, str]]:
    """Read lines of the form `name : value`."""
    found = (re.fullmatch(r"\s*(.+?)\s*:\s*(.*?)\s*", line) for line in text.splitlines())
    return [(match[1], match[2]) for match in found if match]


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:  # the driver writes [N/A]
        return None
    return value if math.isfinite(value) else None
