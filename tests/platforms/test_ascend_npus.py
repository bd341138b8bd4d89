"""What an NPU says of itself through a stand-in for torch-npu; nothing here ran on an NPU."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import npu_machine
import pytest
from npu_machine import GIB, LISTING

from kit.errors import UnsupportedError
from kit.platforms.ascend import AscendPlatform, import_torch_npu, version_problem
from kit.platforms.detect import open_platform, platform_name
from kit.telemetry.accelerators import Accelerator, cann_version, find_npus, parse_npus
from kit.telemetry.environment import capture_environment


@pytest.fixture
def two_npus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return npu_machine.install(tmp_path, monkeypatch)


def test_the_listing_of_the_driver_is_read() -> None:
    assert parse_npus(LISTING) == ((0, 1), (5, 1))
    assert parse_npus(LISTING.replace("Count      ", "Count     ", 1)) == ((0, 1), (5, 1))
    assert parse_npus("NPU ID : 3\nChip Count : 2\n") == ((3, 2),)
    assert parse_npus("Error: no driver") == ()


def test_a_machine_with_npus_is_one(two_npus: list[int]) -> None:
    assert platform_name() == "npu"
    platform = open_platform((1,))
    assert isinstance(platform, AscendPlatform)
    assert (platform.name, platform.compute_capability) == ("npu", None)
    memory = platform.memory()
    assert (memory.free_bytes, memory.total_bytes) == (61 * GIB, 64 * GIB)
    assert platform.peak_memory_bytes() == 8
    platform.synchronize()
    assert two_npus == [1]


@pytest.mark.usefixtures("two_npus")
def test_records_hold_what_npu_smi_says_of_each() -> None:
    npus = (
        Accelerator("910B3", "25.2.0", 65536.0, None, None),
        Accelerator("910B3", "25.2.0", 65536.0, None, None),
    )
    assert find_npus() == npus
    assert capture_environment().accelerators == npus


def test_a_driver_that_says_little_leaves_the_rest_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "npu-smi"
    command.write_text("#!/bin/sh\n[ \"$2\" = -l ] && echo 'NPU ID : 0'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert find_npus() == (Accelerator("NPU", "unknown", None, None, None),)
    command.write_text("#!/bin/sh\nexit 1\n")
    assert find_npus() == ()


@pytest.mark.parametrize("place", [".", "x86_64-linux"])
def test_the_version_of_cann_stands_beside_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert cann_version() == {}
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert cann_version() == {}
    (tmp_path / place).mkdir(exist_ok=True)
    file = tmp_path / place / "ascend_toolkit_install.info"
    file.write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\ninnerversion=V100\n")
    assert capture_environment().packages["cann"] == "9.1.0"


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


@pytest.mark.parametrize(
    ("torch", "torch_npu", "said"),
    [
        ("2.13.0+cpu", "2.13.0", None),
        ("2.10.1", "2.10.0.post4", None),
        ("2.13.0", "2.11.0", r"2\.11\.0 is for torch 2\.11, installed is torch 2\.13\.0"),
        ("2.1.0", "2.10.0", "install torch-npu 2.1, or torch 2.10"),
    ],
)
def test_a_torch_npu_of_another_release_is_named(
    torch: str, torch_npu: str, said: str | None
) -> None:
    problem = version_problem({"torch": torch, "torch-npu": torch_npu})
    if said is None:
        assert problem is None
    else:
        assert problem is not None
        assert re.search(said, problem)
    assert version_problem({"torch": torch}) is None


def test_a_wrong_pair_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_npu.py").write_text("raise AssertionError('loaded')\n")
    information = tmp_path / "torch_npu-1.2.3.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch-npu\nVersion: 1.2.3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with pytest.raises(UnsupportedError, match=r"torch-npu 1\.2\.3 is for torch 1\.2, installed"):
        import_torch_npu()
