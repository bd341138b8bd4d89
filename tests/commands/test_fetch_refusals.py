"""What is refused before a hub is asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kit.cli import main


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "ftp://hub", "http://127.0.0.1:99999", "http://a hub", "http://:7"]
)
@pytest.mark.parametrize("command", ["fetch", "plan"])
def test_an_endpoint_that_is_no_url(command: str, endpoint: str) -> None:
    # A process of its own: huggingface_hub reads the variable as it is imported.
    done = subprocess.run(
        [sys.executable, "-m", "kit.cli", command, "owner/name"],
        env=os.environ | {"HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: HF_ENDPOINT: is no URL of a hub (got {endpoint!r}, set by the environment); write"
    )


@pytest.mark.parametrize("revision", ["", " ", "../main", "a b", "-x"])
def test_a_revision_that_is_none(revision: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "owner/name", f"--revision={revision}"]) == 2
    assert f"--revision: is no revision (got {revision!r}" in capsys.readouterr().err
