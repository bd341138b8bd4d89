"""The environment is found out by program, and says nothing of hosts, users or folders."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import sys
from dataclasses import FrozenInstanceError, asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch

from kit.telemetry.accelerators import Accelerator, parse_accelerators
from kit.telemetry.environment import SystemEnvironment, capture_environment


@pytest.fixture(scope="module")
def environment() -> SystemEnvironment:
    return capture_environment()


def test_capture_agrees_with_the_machine(environment: SystemEnvironment) -> None:
    assert environment.python == f"{platform.python_implementation()} {platform.python_version()}"
    assert environment.num_cpus == os.cpu_count()
    assert 1 <= environment.num_usable_cpus <= environment.num_cpus
    assert environment.memory_bytes == psutil.virtual_memory().total
    assert environment.packages["numpy"] == metadata.version("numpy")
    assert environment.torch is not None
    assert environment.torch.version == torch.__version__
    assert environment.torch.num_threads == torch.get_num_threads()
    age = datetime.now(UTC) - datetime.fromisoformat(environment.timestamp)
    assert 0 <= age.total_seconds() < 3600


def test_environment_is_frozen(environment: SystemEnvironment) -> None:
    with pytest.raises(FrozenInstanceError):
        environment.cpu = "another"  # type: ignore[misc]


def test_no_host_user_or_folder_is_recorded(environment: SystemEnvironment) -> None:
    text = str(asdict(environment))
    for private in (platform.node(), str(Path.home()), str(Path.cwd()), sys.prefix):
        assert private not in text
    if getpass.getuser() != "root":  # a word that a kernel's version may hold
        assert getpass.getuser() not in text


def test_thread_variables_that_are_set_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    variables = capture_environment().thread_variables
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in variables


SMI = "NVIDIA H200, 580.65.06, 143771, 700.00, 1980\n"


def test_accelerators_of_the_driver() -> None:
    device = Accelerator("NVIDIA H200", "580.65.06", 143771.0, 700.0, 1980.0)
    assert parse_accelerators(SMI * 2) == (device, device)


def test_accelerator_values_that_the_driver_does_not_tell() -> None:
    (device,) = parse_accelerators("Orin, 540.4, [N/A], nan, 1300\n")
    assert (device.memory_mib, device.power_limit_w, device.max_clock_mhz) == (None, None, 1300.0)


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n"])
def test_no_accelerator(text: str) -> None:
    assert parse_accelerators(text) == ()


def fake_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "count"), [(f"echo '{SMI.strip()}'", 1), ("echo broken >&2; exit 9", 0)]
)
def test_accelerators_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int
) -> None:
    fake_smi(tmp_path, script)
    assert shutil.which("sh"), "the fake driver is a shell script"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert len(capture_environment().accelerators) == count
