"""The README's edit, as a user types it, and the page's example, by `kit generate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit_command import run_kit
from PIL import Image

from bench.judge import Judge, Seen
from bench.judge_training import SHIPPED_NET
from bench.shape_classifier import load_shape_net
from kit.demo.examples import EDIT_PROMPT, draw_source

PAGED = ("--deploy-config", "hunyuan_image3_paged.yaml")


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(load_shape_net(SHIPPED_NET))


@pytest.fixture(scope="module")
def vase(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vase")
    prompt = "A red ceramic vase on a wooden table"
    drawn = run_kit("generate", prompt, "--seed", "7", "-o", "vase.png", *PAGED, cwd=folder)
    assert drawn.returncode == 0, drawn.stderr
    return folder / "vase.png"


@pytest.mark.parametrize(
    ("prompt", "colour", "background"),
    [("make the vase blue", "blue", "table"), ("put it on the grass", "red", "grass")],
)
def test_what_is_named_changes_and_the_rest_stays(
    prompt: str, colour: str, background: str, vase: Path, judge: Judge, tmp_path: Path
) -> None:
    check_edit(judge, vase, prompt, colour, background, tmp_path)


def test_the_pages_example_is_one_that_the_checkpoint_does(judge: Judge, tmp_path: Path) -> None:
    source = tmp_path / "source.png"
    source.write_bytes(draw_source())
    check_edit(judge, source, EDIT_PROMPT, "blue", "table", tmp_path)


def check_edit(
    judge: Judge, vase: Path, prompt: str, colour: str, background: str, folder: Path
) -> None:
    """Edit the picture of a red vase on a table: it has the colour and the background then."""
    asked = (prompt, "--image", str(vase), "--seed", "1", "-o", "edited.png")
    made = run_kit("generate", *asked, *PAGED, cwd=folder)
    assert made.returncode == 0, made.stderr
    before, after = (look(judge, path) for path in (vase, folder / "edited.png"))
    (source,), (edited,) = before.objects, after.objects
    assert (source.kind, source.colour, before.background) == ("vase", "red", "table")
    assert (edited.kind, edited.colour, after.background) == ("vase", colour, background)
    assert abs(edited.x - source.x) < 0.05
    assert abs(edited.y - source.y) < 0.05
    assert 0.85 < edited.size / source.size < 1.15


def look(judge: Judge, path: Path) -> Seen:
    with Image.open(path) as image:
        return judge.look(np.asarray(image.convert("RGB")))
