"""The machine and the software that numbers were made with, found out by program.

Nothing here names the host, a user or a folder: reports and records are made to be passed on.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
from pydantic.dataclasses import dataclass

from kit.telemetry.accelerators import Accelerator, cann_version, find_accelerators
from kit.telemetry.strict import STRICT

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
    """Version of each package that matters, those that are installed; of CANN beside an NPU."""


def capture_environment() -> SystemEnvironment:
    """Look around; nothing raises, what cannot be found out is None or absent."""
    return SystemEnvironment(
        timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        os=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=cpu_model(),
        num_cpus=os.cpu_count() or 1,
        num_usable_cpus=num_usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        thread_variables={
            name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ
        },
        torch=_torch_build(),
        accelerators=find_accelerators(),
        packages=package_versions(PACKAGES) | cann_version(),
    )


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


def num_usable_cpus() -> int:
    """Return the logical processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


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
