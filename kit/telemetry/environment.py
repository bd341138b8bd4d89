"""The machine and the software that numbers were made with, found out by program.

Nothing here names the host, a user or a folder: reports and records are made to be passed on.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""For what is read back from a file: unknown fields and wrong types are refused."""

PACKAGES = (
    "hunyuan-paged-kit",
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "pydantic",
    "pillow",
    "fastapi",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "torch-npu",
)

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
)

_SMI_FIELDS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
_COMMAND_TIMEOUT_S = 20


@dataclass(frozen=True, config=STRICT)
class TorchBuild:
    """Which torch was importable."""

    version: str
    commit: str | None
    cuda: str | None
    cpu_capability: str
    """Vector instructions that torch's CPU kernels use here, e.g. AVX2."""

    num_threads: int


@dataclass(frozen=True, config=STRICT)
class Accelerator:
    """One device as its driver describes it."""

    name: str
    driver: str
    memory_mib: float | None
    """This and the next two are None where the driver does not tell."""

    power_limit_w: float | None
    max_clock_mhz: float | None


@dataclass(frozen=True, config=STRICT)
class SystemEnvironment:
    """The machine and the software on it."""

    timestamp: str
    """UTC, ISO 8601, to the second."""

    python: str
    os: str
    machine: str
    cpu: str
    num_cpus: int
    """Logical processors of the machine."""

    num_usable_cpus: int
    """Logical processors that this process may run on."""

    memory_bytes: int
    thread_variables: Mapping[str, str]
    """Environment variables that bound threads, those that are set."""

    torch: TorchBuild | None
    """None when torch cannot be imported."""

    accelerators: tuple[Accelerator, ...]
    packages: Mapping[str, str]
    """Version of each package that matters, those that are installed."""


def capture_environment() -> SystemEnvironment:
    """Look around; nothing raises, what cannot be found out is None or absent."""
    return SystemEnvironment(
        timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        os=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=cpu_model(),
        num_cpus=os.cpu_count() or 1,
        num_usable_cpus=_num_usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        thread_variables={
            name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ
        },
        torch=_torch_build(),
        accelerators=_accelerators(),
        packages=package_versions(PACKAGES),
    )


def parse_accelerators(text: str) -> tuple[Accelerator, ...]:
    """Read nvidia-smi's CSV of `_SMI_FIELDS`; lines of another form are left out."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(
        Accelerator(row[0], row[1], *(_number(field) for field in row[2:]))
        for row in rows
        if len(row) == len(_SMI_FIELDS)
    )


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


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the version of each of these packages that is installed."""
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """Return the model of the processor, "unknown" where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _accelerators() -> tuple[Accelerator, ...]:
    query = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    return parse_accelerators(command_output(query) or "")


def _torch_build() -> TorchBuild | None:
    # By name: what imports this module must not need torch.
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError):  # OSError: a shared library of a broken installation
        return None
    return TorchBuild(
        version=str(torch.__version__),
        commit=torch.version.git_version,
        cuda=torch.version.cuda,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
    )


def _num_usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:  # the driver writes [N/A]
        return None
    return value if math.isfinite(value) else None
