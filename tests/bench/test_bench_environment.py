"""A record names the commit of this very project, or none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.environment import capture, git_state


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed checkout with the file by which the project knows itself."""
    for name in ("bench/__init__.py", "kit/__init__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_capture_has_both_parts() -> None:
    environment = capture()
    assert environment.system.num_cpus >= 1
    assert environment.git == git_state(Path(__file__).parents[2])


def test_commit_of_a_clean_checkout(checkout: Path) -> None:
    state = git_state(checkout)
    assert state is not None
    assert state.commit == git(checkout, "rev-parse", "HEAD").strip()
    assert not state.dirty


@pytest.mark.parametrize(
    ("name", "dirty"),
    [
        ("kit/__init__.py", True),
        ("kit/new.py", True),
        ("configs/new.yaml", True),
        ("bench/results/new.json", False),
        ("out/new.json", False),
    ],
)
def test_dirty_means_that_code_or_configuration_differs(
    checkout: Path, name: str, dirty: bool
) -> None:
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("changed")
    state = git_state(checkout)
    assert state is not None
    assert state.dirty is dirty


def test_no_commit_outside_a_checkout(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_no_commit_for_an_installation_inside_another_checkout(checkout: Path) -> None:
    installed = checkout / "site-packages"
    (installed / "bench").mkdir(parents=True)
    (installed / "bench" / "__init__.py").write_text("")
    assert git_state(installed) is None


def test_no_commit_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert git_state(checkout) is None
