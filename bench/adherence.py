"""Which held-out captions and edits are drawn, and what shares of the pictures are right.

A round is 24 captions. On squares: 4 plain, 4 pair, 1 triple, 1 position, 2 each of count, upper,
synonym and partial; on each further size a plain one or a pair, in turn. More rounds go on where
fewer end, so a short run draws the first pictures of a long one.

A round of edits is one of each judged kind on squares and two on a further size, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.edit_judge import EditVerdict
from bench.judge import Verdict
from bench.records import Row
from kit.checkpoint.evaluation import (
    JUDGED_EDITS,
    EvaluationCaption,
    EvaluationEdit,
    evaluation_captions,
    evaluation_edits,
)
from kit.checkpoint.preset import NAMED_SIZES, SQUARE

ASPECTS = ("object", "colour", "background", "relation", "count", "position")

NUM_BY_FAMILY = {
    "plain": 4,
    "pair": 4,
    "triple": 1,
    "position": 1,
    "count": 2,
    "upper": 2,
    "synonym": 2,
    "partial": 2,
}
"""Captions of a round on squares."""

UNGUIDED_FAMILIES = ("plain", "pair")
"""Drawn without guidance, too, on squares."""


_EDIT_NAMES = {
    "colour": "another colour",
    "background": "another background",
    "replace": "another object",
    "size": "another size",
    "add": "an object more",
    "remove": "an object less",
}


@dataclass(frozen=True)
class Task:
    """One picture to draw."""

    caption: EvaluationCaption
    other: EvaluationCaption
    """Of the same family and size, with other facts: the picture must not show it."""

    seed: int
    guided: bool


@dataclass(frozen=True)
class EditTask:
    """One picture to edit."""

    edit: EvaluationEdit
    seed: int


@dataclass(frozen=True)
class Share:
    """How many of the pictures that something is asked of show it."""

    name: str
    num: int
    num_right: int
    at_least: float | None = None
    """None: reported only."""

    at_most: float | None = None

    @property
    def share(self) -> float:
        return self.num_right / self.num

    @property
    def holds(self) -> bool:
        """Whether it is within its limits."""
        low = 0.0 if self.at_least is None else self.at_least
        high = 1.0 if self.at_most is None else self.at_most
        return low <= self.share <= high


def tasks(num_rounds: int, seed: int) -> list[Task]:
    """Return the pictures of some rounds, in their order; every caption is held out."""
    wanted: dict[tuple[str, tuple[int, int]], int] = {
        (family, SQUARE): num * num_rounds for family, num in NUM_BY_FAMILY.items()
    }
    for at in range(num_rounds):
        for size, family in _further(at):
            wanted[family, size] = wanted.get((family, size), 0) + 1
    # One more of each: the last caption needs another one to be held against.
    made = {
        (family, size): evaluation_captions(family, num + 1, seed=seed, size=size)
        for (family, size), num in wanted.items()
    }
    drawn: dict[tuple[str, tuple[int, int]], int] = {}
    found: list[Task] = []
    for at in range(num_rounds):
        cells = [(family, SQUARE) for family, num in NUM_BY_FAMILY.items() for _ in range(num)]
        for cell in [*cells, *((family, size) for size, family in _further(at))]:
            place = drawn[cell] = drawn.get(cell, -1) + 1
            caption = made[cell][place]
            others = [*made[cell][place + 1 :], *made[cell][:place]]
            other = next(one for one in others if one.facts != caption.facts)
            guidance = (True, False) if _also_unguided(cell) else (True,)
            number = len(found)
            found += [Task(caption, other, seed + number, guided) for guided in guidance]
    return found


def edit_tasks(num_rounds: int, seed: int) -> list[EditTask]:
    """Return the edits of some rounds, in their order; every target is held out."""
    cells = [cell for at in range(num_rounds) for cell in _edit_cells(at)]
    made = {
        (kind, size): iter(evaluation_edits(kind, num, seed=seed, size=size))
        for (kind, size), num in Counter(cells).items()
    }
    return [EditTask(next(made[cell]), seed + number) for number, cell in enumerate(cells)]


def edit_columns(verdict: EditVerdict) -> dict[str, bool | None]:
    """Return a verdict as the columns of a row; a caption has none of them."""
    return {"edited": verdict.right, "changed": verdict.changed, "kept": verdict.kept}


def verdict_columns(verdict: Verdict) -> dict[str, bool | None]:
    """Return a verdict as the columns of a row; None where the caption does not name it."""
    columns: dict[str, bool | None] = {name: getattr(verdict, name) for name in ASPECTS}
    return columns | {"right": verdict.right}


def shares(rows: Sequence[Row]) -> tuple[Share, ...]:
    """Count what the rows of one mode say, see `bench/workloads/adherence.py`; at least a round.

    Rows of captions and of edits have columns of their own.
    """

    def share(
        name: str,
        where: Callable[[Row], bool],
        column: str,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Share:
        asked = [row for row in rows if where(row) and row.get(column) is not None]
        return Share(name, len(asked), sum(bool(row[column]) for row in asked), at_least, at_most)

    def guided(row: Row) -> bool:
        return row["guided"] is True

    def basic(row: Row) -> bool:
        return row["family"] in ("plain", "pair")

    def square(row: Row) -> bool:
        return row["size"] == f"{SQUARE[1]}x{SQUARE[0]}"

    def of(family: str) -> Callable[[Row], bool]:
        return lambda row: guided(row) and row["family"] == family

    def of_edit(kind: str) -> Callable[[Row], bool]:
        return lambda row: row["family"] == f"edit: {kind}"

    def all_rows(row: Row) -> bool:
        return bool(row)

    found = (
        share(
            "one or two objects, squares",
            lambda row: guided(row) and basic(row) and square(row),
            "depicted",
            0.97,
        ),
        share(
            "one or two objects, other ratios",
            lambda row: guided(row) and basic(row) and not square(row),
            "depicted",
            0.95,
        ),
        share("relations", guided, "relation", 0.90),
        share("counts", guided, "count", 0.90),
        share("positions", guided, "position", 0.90),
        share("three objects", of("triple"), "right"),
        share("all capitals", of("upper"), "right", 0.95),
        share("synonyms", of("synonym"), "right", 0.95),
        share("partial captions", of("partial"), "right", 0.95),
        share("one or two objects, squares, guidance off", lambda row: not guided(row), "depicted"),
        share("control: drawn by the renderer", all_rows, "render_right", 0.98),
        share("control: held against another caption", all_rows, "other_right", None, 0.02),
        share("edits", all_rows, "edited", 0.80),
        share("edits: what is named changed", all_rows, "changed"),
        share("edits: the rest stayed", all_rows, "kept"),
        share("edits, squares", square, "edited"),
        share("edits, other ratios", lambda row: not square(row), "edited"),
        *(share(f"edits: {name}", of_edit(kind), "edited") for kind, name in _EDIT_NAMES.items()),
        share("control: edited by the renderer", all_rows, "render_edited", 0.98),
        share("control: the source itself", all_rows, "source_edited", None, 0.02),
    )
    return tuple(one for one in found if one.num)


def as_findings(found: Sequence[Share]) -> Mapping[str, float]:
    """Return the shares by name, rounded to what a table shows."""
    return {one.name: round(one.share, 4) for one in found}


def as_table(found: Sequence[Share]) -> str:
    """Return the shares as a Markdown table."""
    lines = [
        "| captions | pictures | right | asked for | holds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in found:
        limit, holds = "nothing", ""
        if one.at_least is not None:
            limit = f"at least {one.at_least:.0%}"
        if one.at_most is not None:
            limit = f"at most {one.at_most:.0%}"
        if (one.at_least, one.at_most) != (None, None):
            holds = "yes" if one.holds else "no"
        lines.append(f"| {one.name} | {one.num} | {one.share:.1%} | {limit} | {holds} |")
    return "\n".join(lines) + "\n"


def _further(at: int) -> list[tuple[tuple[int, int], str]]:
    """Return (size, family) of the captions of a round on sizes that are no square."""
    return [(size, ("plain", "pair")[(at + i) % 2]) for i, size in enumerate(NAMED_SIZES)]


def _edit_cells(at: int) -> list[tuple[str, tuple[int, int]]]:
    """Return (kind, size) of the edits of a round."""
    size = NAMED_SIZES[at % len(NAMED_SIZES)]
    # Over as many rounds as there are sizes, a size has another pair of kinds each time.
    first = 2 * at + 2 * (at // len(NAMED_SIZES))
    further = [JUDGED_EDITS[(first + i) % len(JUDGED_EDITS)] for i in range(2)]
    return [*((kind, SQUARE) for kind in JUDGED_EDITS), *((kind, size) for kind in further)]


def _also_unguided(cell: tuple[str, tuple[int, int]]) -> bool:
    family, size = cell
    return family in UNGUIDED_FAMILIES and size == SQUARE
