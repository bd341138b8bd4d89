"""Tier C: runs tier A's tests on the operators of torch-npu's own library, without CANN.

python tools/npu_registry.py torch_npu-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl

The wheel is unpacked into a folder of its own, beside libraries with the names of CANN's whose
functions all answer 0. So torch_npu imports, registers its operators and has no device; the tests'
emulation computes on the CPU behind torch-npu's own schemas and Python names. Needs gcc, readelf,
and the torch that the wheel belongs to.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[1]
_CANN = (
    "libacl_op_compiler.so",
    "libacl_tdt_channel.so",
    "libascendcl.so",
    "libatb.so",
    "libge_runner.so",
    "libgraph.so",
    "libhccl.so",
)
_LOADED = ("torch_npu/_C.*.so", "torch_npu/lib/*.so")
TESTS = (
    "tests/attention/test_fia.py",
    "tests/attention/test_fia_self_test.py",
    "tests/attention/test_fia_start.py",
    "tests/model/test_npu_operators.py",
    "tests/worker/test_ascend_runner.py",
)
"""Tier A."""


def symbols(library: Path) -> tuple[set[str], set[str]]:
    """Return what a library defines, and what it wants and names no version of."""
    command = ["readelf", "--dyn-syms", "--wide", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    defined, wanted = set[str](), set[str]()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        binding, section, name = fields[4], fields[6], fields[7]
        if section != "UND":
            defined.add(name.partition("@")[0])
        elif binding == "GLOBAL" and "@" not in name:
            wanted.add(name)
    return defined, wanted


def missing_symbols(mine: Iterable[Path]) -> list[str]:
    """Return what only CANN would define: not torch, not this Python, not the system."""
    defined, wanted = set[str](), set[str]()
    for library in mine:
        has, wants = symbols(library)
        defined |= has
        wanted |= wants
    for library in (Path(torch.__file__).parent / "lib").glob("*.so*"):
        defined |= symbols(library)[0]
    running = ctypes.CDLL(None)
    return sorted(name for name in wanted - defined if not hasattr(running, name))


def write_stubs(folder: Path, names: Iterable[str]) -> None:
    """Write libraries of CANN's names; the first one has the functions."""
    source = folder / "stubs.c"
    source.write_text("".join(f"int {name}() {{ return 0; }}\n" for name in names))
    for library in _CANN:
        part = [str(source)] if library == _CANN[0] else ["-x", "c", "/dev/null"]
        target = ["-o", str(folder / library), f"-Wl,-soname,{library}"]
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", *part, *target], check=True)


def main(arguments: list[str]) -> int:
    """Run the tests that are named after the wheel, or tier A's short ones."""
    wheel, *chosen = arguments
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        mine = [path for pattern in _LOADED for path in folder.glob(pattern)]
        write_stubs(folder, missing_symbols(mine))
        environment = os.environ | {
            "KIT_TESTS_TORCH_NPU": "1",
            "LD_LIBRARY_PATH": str(folder),
            "PYTHONPATH": f"{_ROOT}:{folder}",
            # Else `import torch` imports torch_npu, which imports torch.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        tests = chosen or ["-m", "not long", *TESTS]
        # torch-npu's own sources warn when they are compiled.
        options = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=ignore"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        return subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
