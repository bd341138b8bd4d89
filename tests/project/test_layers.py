"""The order of the packages, the torch-free control plane, and the size and silence of modules."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("kit", "bench")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))

MAX_LINES = 400
MAY_PRINT = {"kit/cli.py", "bench/__main__.py"}
# Modules that hold tensors, in packages that are torch-free but for them.
HOLD_TENSORS = {"kit.kv.store"}


def contracts() -> dict[str, dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["id"]: contract for contract in settings["contracts"]}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml on the packages that lie in `tree`."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("golden", "__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_import_points_downward() -> None:
    report = lint(ROOT)
    assert report.returncode == 0, report.stdout + report.stderr


@pytest.mark.parametrize(
    ("module", "line", "named"),
    [
        ("kit/kv/geometry.py", "import torch", "kit.kv.geometry -> torch"),
        ("kit/kv/geometry.py", "import kit.messages", "kit.kv.geometry -> kit.messages"),
        ("kit/errors.py", "import bench", "kit.errors -> bench"),
        ("kit/newcomer.py", "", "not listed as layers: - kit.newcomer"),
    ],
)
def test_a_wrong_import_is_named(copied_tree: Path, module: str, line: str, named: str) -> None:
    with (copied_tree / module).open("a") as file:
        file.write(f"\n{line}\n")
    report = lint(copied_tree)
    assert report.returncode != 0
    assert named in " ".join(report.stdout.split())


def test_contract_names_every_control_plane_module() -> None:
    listed = set(contracts()["control-plane"]["source_modules"])
    modules = {f"kit.kv.{path.stem}" for path in (ROOT / "kit" / "kv").glob("*.py")}
    assert {name for name in listed if name.startswith("kit.kv.")} == (
        modules - HOLD_TENSORS - {"kit.kv.__init__"}
    )


def test_importing_the_control_plane_loads_no_torch() -> None:
    modules = []
    for name in contracts()["control-plane"]["source_modules"]:
        folder = ROOT.joinpath(*name.split("."))
        modules.append(name)
        modules += [f"{name}.{path.stem}" for path in sorted(folder.glob("[!_]*.py"))]
    code = f"import {', '.join(modules)}, sys; raise SystemExit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was loaded"


def test_modules_have_one_job() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in SOURCES
    }
    assert {name: length for name, length in lengths.items() if length >= MAX_LINES} == {}


def test_only_the_command_lines_print() -> None:
    printing = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printing <= MAY_PRINT
