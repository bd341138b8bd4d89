"""What a notebook must hold, and what git must not hold of it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NAMES = (
    "01_first_image",
    "02_paged_kv",
    "03_paged_vs_dense",
    "04_page_geometry",
    "05_capacity_planning",
)

Notebook = dict[str, Any]
Cell = dict[str, Any]

MOST_LINES = 40
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
MEASURED = re.compile(r"(?<![\w.`])\d[\d.,]*\s?(?:%|ms|s|[KMGT]i?B|dB)(?!\w)")
"""A number with a unit: text must not hold one, the cell below it computes it."""


def problems(notebook: Notebook) -> list[str]:
    """Say what is wrong with a notebook as git holds it."""
    cells = notebook["cells"]
    found = [problem for at, cell in enumerate(cells) for problem in cell_problems(at, cell)]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    texts = [cell for cell in cells if cell["cell_type"] == "markdown"]
    if len(code) < 4 or sum(len(source(cell)) for cell in code) < 500:
        found.append("hardly any code")
    if len(texts) < 4 or sum(len(source(cell)) for cell in texts) < 1000:
        found.append("hardly any text")
    with_parameters = [cell for cell in cells if "parameters" in tags_of(cell)]
    if not code or with_parameters != code[:1]:
        found.append("the first code cell, and it alone, must be the parameters")
    if not any("drawing.save(figures" in source(cell) for cell in code):
        found.append("no figure that can be saved")
    if notebook["metadata"] != {"kernelspec": KERNEL, "language_info": {"name": "python"}}:
        found.append("metadata beside the plain kernel")
    return found


def cell_problems(at: int, cell: Cell) -> list[str]:
    text, found = source(cell), []
    if not text.strip():
        found.append("empty")
    if len(text.splitlines()) > MOST_LINES:
        found.append("long: what computes or draws belongs to bench.plots")
    if tags_of(cell) - {"parameters"} or cell["metadata"].keys() - {"tags"}:
        found.append(f"metadata {cell['metadata']}")
    if cell["cell_type"] == "markdown":
        if number := MEASURED.search(text):
            found.append(f"a number that no cell computes: {number[0]}")
    else:
        if cell["outputs"] or cell["execution_count"] is not None:
            found.append("outputs")
        if "parameters" in tags_of(cell) and not all(map(is_plain, ast.parse(text).body)):
            found.append("a parameter that papermill could not replace")
    return [f"cell {at}: {problem}" for problem in found]


def is_plain(statement: ast.stmt) -> bool:
    """Whether a statement gives one name a literal."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    try:
        ast.literal_eval(statement.value)
    except ValueError:
        return False
    return isinstance(statement.targets[0], ast.Name)


def tags_of(cell: Cell) -> set[str]:
    return set(cell["metadata"].get("tags", []))


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def read(path: Path) -> Notebook:
    content: Notebook = json.loads(path.read_text())
    return content


def test_there_are_five() -> None:
    assert tuple(path.stem for path in NOTEBOOKS) == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_clean(path: Path) -> None:
    assert problems(read(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_to_the_other_notebooks(path: Path) -> None:
    linked = re.findall(r"\]\(([^)]+)\)", "".join(map(source, read(path)["cells"])))
    assert [name for name in linked if not (path.parent / name).is_file()] == []
    following = [one.name for one in NOTEBOOKS if one.stem > path.stem][:1]
    assert set(following) <= set(linked)


def first_code(notebook: Notebook) -> Cell:
    found: Cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return found


def plant_output(notebook: Notebook) -> None:
    first_code(notebook)["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1"}]


def plant_count(notebook: Notebook) -> None:
    first_code(notebook)["execution_count"] = 3


def plant_no_parameters(notebook: Notebook) -> None:
    del first_code(notebook)["metadata"]["tags"]


def plant_late_parameters(notebook: Notebook) -> None:
    notebook["cells"].remove(cell := first_code(notebook))
    notebook["cells"].append(cell)


def plant_computed_parameter(notebook: Notebook) -> None:
    first_code(notebook)["source"] = "records = str(1)\n"


def plant_error_tag(notebook: Notebook) -> None:
    first_code(notebook)["metadata"]["tags"].append("raises-exception")


def plant_skip_tag(notebook: Notebook) -> None:
    first_code(notebook)["metadata"]["tags"].append("skip-execution")


def plant_allow_errors(notebook: Notebook) -> None:
    notebook["metadata"]["execution"] = {"allow_errors": True}


def plant_no_code(notebook: Notebook) -> None:
    notebook["cells"] = [c for c in notebook["cells"] if c["cell_type"] == "markdown"]


def plant_no_text(notebook: Notebook) -> None:
    notebook["cells"] = [c for c in notebook["cells"] if c["cell_type"] == "code"]


def plant_empty_cell(notebook: Notebook) -> None:
    notebook["cells"][-1]["source"] = "\n"


def plant_number(notebook: Notebook) -> None:
    notebook["cells"][0]["source"] = "A step takes 105.1 ms."


def plant_no_figure(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        cell["source"] = source(cell).replace("drawing.save", "drawing.show")


def plant_long_cell(notebook: Notebook) -> None:
    notebook["cells"][-1]["source"] = "a\n" * (MOST_LINES + 1)


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (plant_output, "outputs"),
        (plant_count, "outputs"),
        (plant_no_parameters, "must be the parameters"),
        (plant_late_parameters, "must be the parameters"),
        (plant_computed_parameter, "papermill could not replace"),
        (plant_error_tag, "raises-exception"),
        (plant_skip_tag, "skip-execution"),
        (plant_allow_errors, "metadata beside"),
        (plant_no_code, "hardly any code"),
        (plant_no_text, "hardly any text"),
        (plant_empty_cell, "empty"),
        (plant_number, "no cell computes: 105.1 ms"),
        (plant_no_figure, "no figure"),
        (plant_long_cell, "long: "),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[Notebook], None], problem: str) -> None:
    notebook = read(NOTEBOOKS[0])
    plant(notebook)
    assert problem in "; ".join(problems(notebook))
