"""`kit generate --image` and the replay of what it draws."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from golden_cases import GOLDEN
from kit_command import run_kit

from kit.checkpoint.shipped import GOLDEN_CHECKPOINT
from kit.cli import main
from kit.engine.images import read_picture

FIRST, SECOND = (str(GOLDEN / f"ref_image_{j}.png") for j in range(2))
MODEL = ("--model", str(GOLDEN_CHECKPOINT))


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edited")
    command = ["generate", "blend them", "-o", "edited.png", "--steps", "1", "--seed", "3"]
    command += ["--reference-seed", "4"]
    done = run_kit(*command, "--image", SECOND, "--image", FIRST, *MODEL, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "wrote edited.png: 336x176" in done.stdout, "the size of the first image"
    return folder / "edited.png"


@pytest.mark.long
def test_a_replay_with_the_same_images_gives_the_same_picture(edited: Path, tmp_path: Path) -> None:
    named = read_picture(edited).record.request.images
    assert [(image.width, image.height) for image in named] == [(220, 110), (150, 150)]
    assert read_picture(edited).record.request.sampling.reference_seed == 4
    done = run_kit("replay", str(edited), "--image", SECOND, "--image", FIRST, *MODEL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "identical to the file's pixels: 336x176" in done.stdout


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that is refused before anything is loaded; returns its one message."""
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_a_replay_asks_for_the_images(edited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "replay", str(edited), *MODEL)
    named = read_picture(edited).record.request.images
    assert "made from 2 reference images, got 0; give each in this order: 1. 220x110" in message
    assert all(image.sha256 in message for image in named)
    swapped = ("--image", FIRST, "--image", SECOND)
    message = refusal(capsys, "replay", str(edited), *swapped, *MODEL)
    assert "reference image 1 is 150x150" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"text", "cannot be read as a png, jpeg or webp"),
        ((GOLDEN / "ref_image_0.png").read_bytes()[:-400], "cannot be read as a png"),
    ],
    ids=["absent", "text", "cut"],
)
def test_a_file_that_is_no_image_is_named(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content)
    message = refusal(capsys, "generate", "x", "--image", str(path), "--dry-run", *MODEL)
    assert f"--image {path}: " in message
    assert words in message


def test_the_broken_one_of_two_files_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.png"
    path.touch()
    images = ("--image", FIRST, "--image", str(path))
    message = refusal(capsys, "generate", "x", *images, "--dry-run", *MODEL)
    assert message.startswith(f"error: --image {path}: got an empty file")


def test_a_pipe_is_refused_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell's <(command) is one."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    message = refusal(capsys, "generate", "x", "--image", str(path), "--dry-run", *MODEL)
    os.close(writer)
    assert message.startswith(f"error: --image {path}: cannot be read: it is a pipe; save")


def test_four_images_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    images = ("--image", FIRST) * 4
    message = refusal(capsys, "generate", "x", *images, "--dry-run", *MODEL)
    assert "got 4 reference images, at most 3 are taken" in message


def test_a_reference_seed_needs_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "generate", "x", "--reference-seed", "4", "--dry-run", *MODEL)
    assert "reference_seed: got 4, but there is no reference image" in message


def test_a_checkpoint_that_takes_none_refuses_them(
    capsys: pytest.CaptureFixture[str], text_checkpoint: Path
) -> None:
    model = ("--model", str(text_checkpoint))
    message = refusal(capsys, "generate", "x", "--image", FIRST, "--dry-run", *model)
    assert "this checkpoint takes no reference images: " in message
    assert "HunyuanImage-3.0-Instruct" in message
