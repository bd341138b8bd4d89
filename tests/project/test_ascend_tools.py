"""The tools behind tiers A and C: which lines are counted, what stands in for CANN's libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def tool(name: str) -> Any:
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ascend_coverage, npu_registry = tool("ascend_coverage"), tool("npu_registry")

SOURCE = '''
LIMIT = 3


def f(x):
    if x:
        return LIMIT

    return 0


class C:
    y = 1

    def g(self):
        """Text."""
        return lambda: self.y
'''


def test_only_lines_of_functions_count(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert ascend_coverage.function_lines(path) == {6, 7, 9, 17}


def test_everything_that_runs_on_npus_only_is_counted() -> None:
    counted = {path.relative_to(ROOT).as_posix() for path in ascend_coverage.SOURCES}
    mine = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kit").rglob("*.py")
        if "npu_" in path.read_text() and "torch-npu" in path.read_text()
    }
    assert mine <= counted | {"kit/telemetry/accelerators.py"}


@pytest.mark.long
# Tracing line by line: 1.5 minutes at a load of 8 on two cores, more with more threads than cores.
@pytest.mark.timeout(1200)
def test_tier_a_runs_the_lines_of_the_backend() -> None:
    command = [sys.executable, "tools/ascend_coverage.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the limit is 95 %" in done.stdout


@pytest.mark.skipif(
    None in map(shutil.which, ("gcc", "readelf")), reason="tier C's tool needs gcc and readelf"
)
def test_stand_ins_define_what_only_cann_would(tmp_path: Path) -> None:
    source = tmp_path / "mine.c"
    source.write_text(
        "int aclrtSetDevice(int); int malloc_trim(unsigned long);\n"
        "int own(void) { return 7; }\n"
        "int run(void) { return own() + aclrtSetDevice(3) + 0 * malloc_trim(0); }\n"
    )
    library = tmp_path / "libmine.so"
    build = ["gcc", "-shared", "-fPIC", "-w", str(source), "-o", str(library)]
    subprocess.run(build, check=True)
    assert npu_registry.missing_symbols([library]) == ["aclrtSetDevice"]
    npu_registry.write_stubs(tmp_path, ["aclrtSetDevice"])
    program = (
        f"import ctypes; ctypes.CDLL('{tmp_path}/libacl_op_compiler.so', ctypes.RTLD_GLOBAL); "
        f"print(ctypes.CDLL('{library}').run())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "7\n"
    assert (tmp_path / "libhccl.so").exists()
