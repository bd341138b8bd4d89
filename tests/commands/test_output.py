"""Where commands write: what cannot be written is refused, and no fault is a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.cli import main
from kit.commands.output import check_writable
from kit.errors import ConfigError

LONG = "x" * 300
"""More than a file system takes."""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (".", "is a folder"),
        ("absent/a.png", "has no folder"),
        (f"{LONG}.png", "cannot be written: File name too long"),
    ],
)
def test_outputs_that_cannot_be_written(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"--output: {problem}"):
        check_writable("--output", tmp_path / name)
    check_writable("--output", tmp_path / "a.png")


def test_what_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a new file the folder is asked; root may write everywhere, so the answer is planted."""
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    old, new = tmp_path / "old.png", tmp_path / "new.png"
    old.touch()
    for path in (old, new):
        with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
            check_writable("--output", path)
    assert asked == [(old, os.W_OK), (tmp_path, os.W_OK)]


@pytest.mark.parametrize(
    "command",
    [
        ("plan", LONG),
        ("plan", f"owner/{LONG}"),
        ("plan", "--deploy-config", LONG),
        ("config", "--model", LONG),
        ("config", "--model", f"owner/{LONG}"),
        ("doctor", "-o", LONG),
        ("generate", "a vase", "--image", LONG, "--dry-run"),
    ],
)
def test_names_that_no_file_can_have_are_refused(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert LONG in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_full_disk_and_a_closed_output_are_said_in_one_line() -> None:
    plan = [sys.executable, "-m", "kit.cli", "plan"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(plan, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *plan], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")
