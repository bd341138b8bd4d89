"""The table of docs/notebooks.md names every notebook and exactly its parameters."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def parameters(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    (cell,) = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    names = []
    for statement in ast.parse("".join(cell["source"])).body:
        assert isinstance(statement, ast.Assign)
        names.append(ast.unparse(statement.targets[0]))
    return names


def test_table_is_that_of_the_notebooks() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text()
    rows = re.findall(r"^\| `(\d\d_\w+)` \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    told = {name: re.findall(r"`(\w+)`", names) for name, names in rows}
    wanted = {path.stem: parameters(path) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert told == wanted
    assert list(told) == sorted(told)


def test_parameters_that_the_page_sets_exist() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text()
    calls = re.findall(r"papermill .*?-p (\w+) \S+ notebooks/(\w+\.ipynb)", page)
    assert calls
    for name, notebook in calls:
        assert name in parameters(ROOT / "notebooks" / notebook)
