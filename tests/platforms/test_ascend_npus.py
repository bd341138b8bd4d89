"""What an NPU says of itself through a stand-in for torch-npu; nothing here ran on an NPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kit.errors import UnsupportedError
from kit.platforms.ascend import AscendPlatform, import_torch_npu, parse_npus
from kit.platforms.detect import open_platform, platform_name

LISTING = """\
\tTotal Count                    : 2

\tNPU ID                         : 0
\tProduct Name                   : some card
\tChip Count                     : 1

\tNPU ID                         : 5
\tBoard ID                       : 0x02
"""


@pytest.fixture
def two_npus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A driver that lists two NPUs and a torch_npu that sees them; returns who was waited for."""
    command = tmp_path / "npu-smi"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{LISTING}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    waited: list[int] = []
    module = ModuleType("torch_npu")
    module.__dict__["npu"] = SimpleNamespace(
        device_count=lambda: 2,
        mem_get_info=lambda ordinal: (50 + ordinal, 64),
        max_memory_allocated=lambda ordinal: 7 + ordinal,
        synchronize=waited.append,
    )
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return waited


def test_the_listing_of_the_driver_is_read() -> None:
    assert parse_npus(LISTING) == (0, 5)
    assert parse_npus("Error: no driver") == ()


def test_a_machine_with_npus_is_one(two_npus: list[int]) -> None:
    assert platform_name() == "npu"
    platform = open_platform((1,))
    assert isinstance(platform, AscendPlatform)
    assert (platform.name, platform.compute_capability) == ("npu", None)
    memory = platform.memory()
    assert (memory.free_bytes, memory.total_bytes) == (51, 64)
    assert platform.peak_memory_bytes() == 8
    platform.synchronize()
    assert two_npus == [1]


@pytest.mark.usefixtures("two_npus")
def test_an_npu_that_is_not_there_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match=r"no accelerator 2; this process sees 2 NPUs"):
        open_platform((2,))


def test_a_torch_npu_that_cannot_load_is_told_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(UnsupportedError, match="torch-npu is not installed"):
        import_torch_npu()
    monkeypatch.delitem(sys.modules, "torch_npu")
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: no such file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"does not load \(libhccl.so.*install the CANN"):
        import_torch_npu()
