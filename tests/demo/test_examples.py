"""What the examples fill in."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from bench.judge import Judge
from bench.judge_training import SHIPPED_NET
from bench.shape_classifier import load_shape_net
from kit.demo.desk import Desk, Servers
from kit.demo.examples import EDIT_PROMPT, PROMPTS, draw_source
from kit.demo.page import build_blocks


def test_the_edit_speaks_of_its_source() -> None:
    with Image.open(io.BytesIO(draw_source())) as image:
        seen = Judge(load_shape_net(SHIPPED_NET)).look(np.asarray(image))
    [vase] = seen.objects
    assert (vase.kind, vase.colour, seen.background) == ("vase", "red", "table")
    assert f"the {vase.kind} " in EDIT_PROMPT


@pytest.mark.parametrize("form", ["create", "compare"])
def test_an_example_fills_in_a_prompt_and_its_image_or_none(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    filled = asyncio.run(click_examples(form))
    assert list(filled) == [*PROMPTS, f"Edit: {EDIT_PROMPT}"]
    edit = filled.popitem()[1]
    [source] = edit.pop(f"{form}-images")
    assert edit == {f"{form}-prompt": EDIT_PROMPT, f"{form}-images-error": ""}
    assert Path(source).name == "red-vase.png"
    assert Path(source).read_bytes() == draw_source()
    for prompt, fields in filled.items():
        assert fields == {
            f"{form}-prompt": prompt,
            f"{form}-images": None,
            f"{form}-images-error": "",
        }


async def click_examples(form: str) -> dict[str, dict[str, Any]]:
    """What each example of a form fills in, by the button's text and the fields' ids."""
    nowhere = "http://127.0.0.1:9"
    blocks: Any = build_blocks(Desk(Servers(nowhere, nowhere)))
    found: dict[str, dict[str, Any]] = {}
    for fn in blocks.fns.values():
        button = blocks.blocks.get(fn.targets[0][0])
        if isinstance(button, gr.Button) and fn.name == "example":
            names = [one.elem_id for one in fn.outputs]
            if names[0] == f"{form}-prompt":
                found[str(button.value)] = dict(zip(names, fn.fn(), strict=True))
    return found
