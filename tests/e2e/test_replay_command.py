"""`kit replay` as a real process: the same picture, another one, or a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kit_command import run_kit
from replay_records import noise, sample_record

from kit.cli import main
from kit.engine.images import encode_image, read_picture
from kit.request import ReplayRecord


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture of the shipped checkpoint in pages of a size that is not the default."""
    folder = tmp_path_factory.mktemp("picture")
    stage = {
        "diffusion_kv_mode": "paged_scheduler",
        "diffusion_kv_max_rows_per_request": 2,
        "diffusion_kv_page_size": 48,
    }
    command = ["generate", "a red vase, 花瓶", "-o", "vase.png", "--steps", "1", "--seed", "3"]
    command += ["--stage-overrides", json.dumps({"0": stage}), "--dtype", "bfloat16"]
    done = run_kit(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "vase.png"


def written(picture: Path, path: Path, edit: Callable[[ReplayRecord], ReplayRecord]) -> Path:
    """Write the picture's pixels with an edited record."""
    original = read_picture(picture)
    data = encode_image(original.pixels, record=edit(original.record)).data
    path.write_bytes(data)
    return path


def test_a_picture_comes_out_again_from_its_own_record(picture: Path, tmp_path: Path) -> None:
    done = run_kit("replay", str(picture), "-o", "again.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "identical to the file's pixels: 256x256, sha256" in done.stdout
    assert "no recorded fact that could change the picture differs now" in done.stdout
    assert "paged native path active" in done.stderr, "the recorded KV mode ran"
    again, first = read_picture(tmp_path / "again.png"), read_picture(picture)
    assert (again.pixels == first.pixels).all()
    assert again.record.deployment.page_size == 48
    assert again.record.deployment.dtype == "bfloat16"
    assert again.record.request == first.record.request


def test_a_jpeg_is_judged_by_the_pixels_it_was_given(picture: Path, tmp_path: Path) -> None:
    original = read_picture(picture)
    jpeg = encode_image(original.pixels, "jpeg", quality=30, record=original.record)
    (tmp_path / "vase.jpg").write_bytes(jpeg.data)
    done = run_kit("replay", "vase.jpg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "identical to the pixels that jpeg was given" in done.stdout


def test_other_weights_and_another_deployment_are_named(
    picture: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    shard = other / "model-0003-of-0003.safetensors"
    raw = bytearray(shard.read_bytes())
    # Some bits of every weight's mantissa: another checkpoint whose numbers stay finite.
    data_start = 8 + int.from_bytes(raw[:8], "little")
    weights = np.frombuffer(raw, np.uint8)[data_start:]
    weights[::4] ^= 0x55
    weights[1::4] ^= 0x55
    shard.write_bytes(raw)
    overrides = '{"0": {"diffusion_attention_backend": "TORCH_SDPA"}}'
    done = run_kit(
        "replay", str(picture), "--model", str(other), "--stage-overrides", overrides, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "different: PSNR " in done.stdout
    assert "pixels differ" in done.stdout
    facts = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[2:]}
    assert "model.fingerprint" in facts
    assert facts["deployment.kv_mode"] == ["paged_scheduler", "dense_legacy"]
    assert facts["deployment.page_size"] == ["48", "-"]
    assert facts["deployment.dtype"] == ["bfloat16", "float32"]


def test_a_changed_file_is_not_what_was_drawn(picture: Path, tmp_path: Path) -> None:
    original = read_picture(picture)
    pixels = original.pixels.copy()
    pixels[:8, :8] = 0
    (tmp_path / "edited.png").write_bytes(encode_image(pixels, record=original.record).data)
    done = run_kit("replay", "edited.png", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the file was changed" in done.stdout
    assert "come out again" in done.stdout
    assert "64 of 65536 pixels differ" in done.stdout


@pytest.mark.parametrize("caching", [True, False])
def test_rounding_that_no_record_names_is_told(
    picture: Path, tmp_path: Path, caching: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prefix that was found is rounded as whoever computed it; a replay finds none."""

    def edit(record: ReplayRecord) -> ReplayRecord:
        settings = {**record.deployment.settings, "stage.enable_prefix_caching": caching}
        sampling = replace(record.request.sampling, seed=4)
        return replace(
            record,
            request=replace(record.request, sampling=sampling),
            deployment=replace(record.deployment, settings=settings),
        )

    assert main(["replay", str(written(picture, tmp_path / "x.png", edit))]) == 1
    said = capsys.readouterr().out
    assert "different: PSNR " in said
    assert ("note: it was made with enable_prefix_caching" in said) == caching


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that is refused before anything is loaded; returns its one message."""
    assert main(["replay", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_another_checkpoint_must_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = noise()
    (tmp_path / "other.png").write_bytes(encode_image(image, record=sample_record(image)).data)
    message = refusal(capsys, str(tmp_path / "other.png"))
    assert "HunyuanImage-3.0" in message
    assert "--model" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stage.parallel_config.ring_degree", 2),
        ("stage.parallel_config.tensor_parallel_size", "4"),
        ("stage.enable_cpu_offload", True),
        ("stage.no_such_setting", 1),
        ("stage.lora_path", "/etc/passwd"),
    ],
)
def test_a_deployment_that_cannot_be_built_here_is_refused(
    picture: Path,
    tmp_path: Path,
    name: str,
    value: str | int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def edit(record: ReplayRecord) -> ReplayRecord:
        settings = {**record.deployment.settings, name: value}
        return replace(record, deployment=replace(record.deployment, settings=settings))

    message = refusal(capsys, str(written(picture, tmp_path / "x.png", edit)))
    assert "the recorded deployment cannot be built here" in message
    assert "--deploy-config" in message
    assert name.rpartition(".")[2] in message


def test_an_absurd_request_is_refused_like_any_other(picture: Path, tmp_path: Path) -> None:
    def edit(record: ReplayRecord) -> ReplayRecord:
        sampling = replace(record.request.sampling, num_inference_steps=10**9)
        return replace(record, request=replace(record.request, sampling=sampling))

    done = run_kit("replay", str(written(picture, tmp_path / "x.png", edit)), cwd=tmp_path)
    assert done.returncode == 2
    assert "num_inference_steps" in done.stderr
    assert "loaded in" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.png"], "No such file"),
        (["bare.png"], "carries no replay record"),
        (["text.png"], "cannot be read as a png"),
        (["bare.png", "-o", "x.gif"], "--output"),
        (["bare.png", "-o", "nowhere/x.png"], "--output"),
    ],
)
def test_what_cannot_be_replayed_ends_with_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bare.png").write_bytes(encode_image(noise()).data)
    (tmp_path / "text.png").write_text("a text")
    monkeypatch.chdir(tmp_path)
    assert words in refusal(capsys, *arguments)
