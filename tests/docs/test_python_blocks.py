"""The programs that README.md and docs/ show for kit.api run as they stand, on what it exports."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.judge import Judge
from bench.judge_training import SHIPPED_NET
from bench.shape_classifier import load_shape_net
from kit.demo.examples import draw_source

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown_programs() -> list[tuple[str, str]]:
    """(page, program) of each Python block that imports the kit."""
    fence = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        (page.name, program)
        for page in PAGES
        for program in fence.findall(page.read_text())
        if re.search(r"^from kit\b", program, re.MULTILINE)
    ]


@pytest.mark.parametrize(("page", "program"), shown_programs(), ids=lambda value: value[:24])
def test_a_program_needs_kit_api_only_and_runs(
    page: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(re.findall(r"^(?:from|import) (kit[\w.]*)", program, re.MULTILINE)) == {"kit.api"}
    (tmp_path / "vase.png").write_bytes(draw_source())
    monkeypatch.chdir(tmp_path)
    exec(compile(program, page, "exec"), {})
    if page == "editing.md":
        with Image.open("blue.png") as image:
            seen = Judge(load_shape_net(SHIPPED_NET)).look(np.asarray(image))
        assert [(one.kind, one.colour) for one in seen.objects] == [("vase", "blue")]


def test_an_edit_is_among_the_programs() -> None:
    assert {"README.md", "editing.md", "planning.md"} <= {page for page, _ in shown_programs()}
