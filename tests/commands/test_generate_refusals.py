"""What the shipped checkpoint refuses at the command line, by name and with what it takes."""

from __future__ import annotations

import pytest

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.cli import main
from kit.modelspec.config import load_model_config
from kit.tokenizer.template import supported_sizes
from kit.tokenizer.tokenizer import Tokenizer


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["generate", *arguments, "--dry-run"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt(prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, prompt)
    assert f"prompt: expected text that describes the image, got {prompt!r}" in message


def test_a_prompt_that_is_too_long_names_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "a red vase " * 200)
    assert "the model takes 648; at most 372 prompt tokens fit beside the rest" in message
    assert "of 256x256, got 601; shorten it\n" in message


def test_an_unsupported_size_lists_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "a red vase", "--size", "250x250")
    config = load_model_config(DEFAULT_CHECKPOINT)
    sizes = supported_sizes(Tokenizer.from_folder(DEFAULT_CHECKPOINT, config), config)
    assert len(sizes) == 33
    assert "size: 250x250 is not supported; nearest supported: 256x256" in message
    assert ", ".join(map(str, sizes)) in message


def test_a_default_size_that_the_model_lacks_is_refused_by_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = '{"0": {"default_sampling_params": {"height": 250, "width": 250}}}'
    message = refusal(capsys, "a red vase", "--stage-overrides", sizes)
    assert (
        "error: stages[0].default_sampling_params.width: with height 250 is no size of this model "
        "(got 250, set by --stage-overrides); the nearest is width 256, height 256"
    ) in message
    nearest = sizes.replace("250", "256")
    assert main(["generate", "a red vase", "--stage-overrides", nearest, "--dry-run"]) == 0
