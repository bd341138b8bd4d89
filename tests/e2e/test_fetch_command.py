"""`kit fetch` as a real process against a hub on this machine, then everything offline."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, MODEL, Answer, FakeHub

from kit.cli import main
from kit.engine.images import read_picture

LARGE = "extra.safetensors"
CHUNK_BYTES = 10 << 20
"""What huggingface_hub writes at a time."""


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[FakeHub]:
    with FakeHub.of_folder(checkpoint).serve() as hub:
        yield hub


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
    return {**os.environ, **home}


def kit(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kit.cli", *arguments],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def test_a_fetched_model_serves_and_draws_by_its_id_without_the_network(
    hub: FakeHub, environment: dict[str, str], tmp_path: Path
) -> None:
    refused = kit("serve", MODEL, env=environment)
    assert refused.returncode == 2
    assert f"kit fetch {MODEL}" in refused.stderr
    done = kit("fetch", MODEL, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"commit {COMMIT}" in done.stdout
    assert f"kit serve {MODEL}" in done.stdout
    folder = done.stdout.rpartition("kit serve ")[2].strip()
    assert Path(folder) == tmp_path / "home" / "hunyuan-paged-kit" / "lab--tiny-image" / COMMIT

    num_requests = len(hub.seen)
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    for name in (MODEL, f"{MODEL}@{COMMIT}", folder):
        shown = kit("serve", name, "--dry-run", env=offline)
        assert shown.returncode == 0, shown.stderr
    command = ["generate", "a cat", "--steps", "1", "--model", MODEL]
    output = tmp_path / "cat.webp"
    drawn = kit(*command, "-o", str(output), "--quality", "40", env=offline)
    assert drawn.returncode == 0, drawn.stderr
    assert read_picture(output).image_format == "webp"
    again = kit("fetch", MODEL, env=offline)
    assert again.returncode == 0, again.stderr
    assert "offline" in again.stdout
    assert len(hub.seen) == num_requests


def test_to_a_folder_of_ones_own(environment: dict[str, str], tmp_path: Path) -> None:
    done = kit("fetch", f"{MODEL}@{COMMIT}", "--to", str(tmp_path / "own"), env=environment)
    assert done.returncode == 0, done.stderr
    shown = kit("config", "--model", str(tmp_path / "own"), env=environment)
    assert shown.returncode == 0, shown.stderr
    assert not (tmp_path / "home" / "hunyuan-paged-kit").exists()


def test_a_killed_download_goes_on_where_it_was(
    hub: FakeHub, environment: dict[str, str], tmp_path: Path
) -> None:
    hub.files[LARGE] = os.urandom(1 << 20) * 25
    release = threading.Event()
    hub.script[LARGE] = [Answer(stop_after=(25 << 20) - 1, hold=release)]
    to = tmp_path / "own"
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.cli", "fetch", MODEL, "--to", str(to)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and largest_file(to) < 2 * CHUNK_BYTES:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait(timeout=30)
        release.set()
    assert largest_file(to) == 2 * CHUNK_BYTES
    hub.seen.clear()
    done = kit("fetch", MODEL, "--to", str(to), env=environment)
    assert done.returncode == 0, done.stderr
    assert hub.ranges(LARGE) == [f"bytes={2 * CHUNK_BYTES}-"]
    assert (to / LARGE).read_bytes() == hub.files[LARGE]


def largest_file(folder: Path) -> int:
    return max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([MODEL, "--revision", "v9"], "no such branch"),
        (["lab/other"], "no such model"),
    ],
)
def test_refusals_end_with_2(arguments: list[str], words: str, environment: dict[str, str]) -> None:
    done = kit("fetch", *arguments, env=environment)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "owner/name"),
        (["../x/y"], "owner/name"),
        ([f"{MODEL}@v1", "--revision", "v2"], "--revision"),
    ],
)
def test_names_that_are_none(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_offline_without_a_copy(environment: dict[str, str]) -> None:
    done = kit("fetch", MODEL, env=environment | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2
    assert "HF_HUB_OFFLINE" in done.stderr
