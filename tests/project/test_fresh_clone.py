"""What a stranger does: clone, install, ask for help, build the wheel and use it elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

# What this checkout's make was told travels in MAKEFLAGS; the clone is to be judged alone. TORCH,
# TORCH_INDEX and PYTHON stay: they are this machine's choice, and make exports them.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VIRTUAL_ENV", "PYTHONPATH")
} | {"PYTHON": os.environ.get("PYTHON", sys.executable)}


def run(*command: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment or ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of HEAD: what is not committed is not in it."""
    if not (ROOT / ".git").exists():
        pytest.skip("this copy has no .git, so there is nothing to clone")
    folder = tmp_path_factory.mktemp("clone")
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, "kit-clone", cwd=folder)
    return folder / "kit-clone"


@pytest.fixture(scope="module")
def installed(clone: Path) -> Iterator[Path]:
    """The same clone after `make install`."""
    run("make", "install", cwd=clone)
    yield clone
    shutil.rmtree(clone / ".venv")  # pytest keeps temporary folders; this one has gigabytes


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", cwd=clone)
    (built,) = (clone / "dist").glob("*.whl")
    return built


def test_install_leaves_a_command_that_runs(installed: Path) -> None:
    shown = run(".venv/bin/kit", "--help", cwd=installed)
    for command in ("generate", "serve", "config", "doctor"):
        assert command in shown


def test_install_brings_what_shows_and_no_test_tool(installed: Path) -> None:
    listed = run(".venv/bin/python", "-m", "pip", "list", "--format=freeze", cwd=installed)
    names = {line.split("==")[0].lower() for line in listed.splitlines() if "==" in line}
    assert {"torch", "gradio", "fastapi"} <= names
    assert not names & {"pytest", "mypy", "ruff"}


def test_second_install_does_nothing(installed: Path) -> None:
    stamp = installed / ".venv" / ".install"
    before = stamp.stat().st_mtime_ns
    assert "installing" not in run("make", "install", cwd=installed)
    assert stamp.stat().st_mtime_ns == before


def test_install_leaves_the_clone_clean(installed: Path) -> None:
    assert run("git", "status", "--porcelain", cwd=installed) == ""


def test_wheel_carries_configs_checkpoint_and_golden_case(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for folder in (
        "kit/configs/",
        "kit/checkpoint/golden/",
        "kit/checkpoint/hunyuan_image3_tiny/",
        "kit/doctor/golden/",
    ):
        source = ROOT / (folder if folder != "kit/configs/" else "configs/")
        shipped = {name.removeprefix(folder) for name in names if name.startswith(folder)}
        expected = run("git", "ls-files", "--", ".", cwd=source).split()
        assert shipped >= set(expected), folder
    assert [name for name in names if name.startswith("kit/configs/") and name.endswith(".yaml")]
    shards = [name for name in names if Path(name).match("kit/checkpoint/golden/*.safetensors")]
    assert len(shards) == 3
    assert [name for name in names if Path(name).match("*.dist-info/licenses/LICENSE")]
    assert "kit/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]


def test_installed_wheel_draws_a_picture_far_from_its_sources(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    python = installed / ".venv" / "bin" / "python"
    target = tmp_path / "target"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        target,
        wheel,
        cwd=tmp_path,
    )
    environment = ENVIRONMENT | {"PYTHONPATH": str(target)}
    where = run(
        *(python, "-c", "import kit; print(kit.__file__)"), cwd=tmp_path, environment=environment
    )
    assert where.startswith(str(target))
    run(
        *(python, target / "bin" / "kit", "generate", "a red vase", "--steps", "1"),
        *("--deploy-config", "hunyuan_image3_paged", "-o", "out.png"),
        cwd=tmp_path,
        environment=environment,
    )
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
