"""Tests that a page names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_a_page_names_is_there() -> None:
    there: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        there |= {path.stem, *re.findall(r"def (test_\w+)\(", path.read_text())}
    named = {
        name
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"\btest_\w+", page.read_text())
    }
    named = {name for name in named if not name.endswith("_")}  # "test_plots_*"
    assert len(named) > 50
    assert named <= there, named - there
