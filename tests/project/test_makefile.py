"""The Makefile's messages and the rule that a tier without a test fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN_TIER = ROOT / "tools" / "run_tier.py"

# An outer make or pytest must not steer the inner one, whose tests need no plugin.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL") and not name.startswith("PYTEST_")
} | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def fake_python(folder: Path, body: str) -> Path:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


def test_make_alone_lists_every_documented_target() -> None:
    shown = run("make", "--no-print-directory")
    assert shown.returncode == 0
    names = [line.split()[1] for line in shown.stdout.splitlines()]
    assert names == [
        "help",
        "install",
        "demo",
        "bench",
        "notebooks",
        "test",
        "test-all",
        "check",
        "lock",
        "clean",
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            'case "$*" in *--version*) echo "Python 3.9.2";; *version_info*) exit 1;; esac',
            "needs Python 3.11, 3.12 or 3.13; {python} --version says: Python 3.9.2",
            id="older-python",
        ),
        pytest.param(
            'case "$*" in *ensurepip*) exit 1;; esac',
            "{python} cannot create virtual environments; install its venv module",
            id="no-venv-module",
        ),
    ],
)
def test_install_says_what_is_wrong_with_python(tmp_path: Path, body: str, message: str) -> None:
    python = fake_python(tmp_path, body)
    venv = tmp_path / "venv"
    done = run("make", "install", f"PYTHON={python}", f"VENV={venv}")
    assert done.returncode != 0
    assert (
        f"error: {'the kit ' if 'needs' in message else ''}" + message.format(python=python)
        in done.stderr
    )
    assert not venv.exists()


@pytest.mark.parametrize(
    ("source", "code", "line"),
    [
        pytest.param("def test_a(): pass\n", 0, "1 passed, 0 failed, 0 skipped in", id="passes"),
        pytest.param("def test_a(): assert 0\n", 1, "0 passed, 1 failed, 0 skipped", id="fails"),
        pytest.param("def other(): pass\n", 5, "no test ran", id="collects-none"),
        pytest.param(
            "import pytest\ndef test_a(): pytest.skip('no reason')\n", 1, "no test ran", id="skips"
        ),
        pytest.param("import nothing_of_this_name\n", 2, "0 passed, 1 failed", id="import-error"),
    ],
)
def test_tier_reports_one_line(tmp_path: Path, source: str, code: int, line: str) -> None:
    (tmp_path / "test_sample.py").write_text(source)
    done = run(sys.executable, RUN_TIER, "sample", cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"tier sample: {line}")
    assert (tmp_path / "build" / "tiers" / "sample.txt").read_text() == last + "\n"


def test_tier_reports_a_pytest_that_does_not_start(tmp_path: Path) -> None:
    done = run(sys.executable, RUN_TIER, "sample", "--no-such-option", cwd=tmp_path)
    assert done.returncode == 4
    assert "tier sample: pytest stopped with exit code 4 before it ran a test" in done.stdout


def test_tier_needs_a_name(tmp_path: Path) -> None:
    done = run(sys.executable, RUN_TIER, "-n", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("recipe", "code", "lines"),
    [
        pytest.param(
            "echo tier short: 3 passed > {short}; echo tier long: 2 passed > {long}",
            0,
            ["tier short: 3 passed", "tier long: 2 passed"],
            id="both-pass",
        ),
        pytest.param(
            "echo tier short: 1 failed > {short}; exit 1",
            1,
            ["tier short: 1 failed", "tier long: did not run"],
            id="short-fails",
        ),
        pytest.param(
            "echo tier short: 3 passed > {short}",
            1,
            ["tier short: 3 passed", "tier long: did not run"],
            id="long-never-ran",
        ),
    ],
)
def test_ci_ends_with_a_line_for_each_tier(
    tmp_path: Path, recipe: str, code: int, lines: list[str]
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    recipe = recipe.format(short="build/tiers/short.txt", long="build/tiers/long.txt")
    (tmp_path / "Makefile").write_text(f"test-all:\n\t@mkdir -p build/tiers; {recipe}\n")
    # Left over from an earlier run: must not be taken for this one's.
    (tmp_path / "build" / "tiers").mkdir(parents=True)
    (tmp_path / "build" / "tiers" / "long.txt").write_text("tier long: 9 passed\n")
    done = run(tmp_path / ".ci" / "run", cwd=Path("/"))
    assert done.returncode == code
    assert done.stdout.splitlines()[-2:] == lines
