"""Numbers of records for charts: medians of rows and ratios, with their intervals."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.agreement import machine, ratio_estimate, text_of
from bench.records import Measurement, Record, RecordError, load
from bench.statistics import Estimate, percentile

SHIPPED = Path(__file__).parents[1] / "results"


def read_record(folder: str | Path, name: str) -> Record:
    """Read NAME.json, from the records that ship where the folder is empty.

    Raises RecordError for one that is not there or did not end well.
    """
    path = Path(folder or SHIPPED, f"{name}.json")
    record = load(path)
    if record.status != "ok":
        raise RecordError(
            f"record {path}: its status is {record.status}, a notebook draws records that are ok; "
            f"run `python -m bench run {name} --out {path}` again"
        )
    return record


def about(record: Record) -> str:
    """Return one sentence in Markdown: what was compared, how equal, where."""
    assert record.equality is not None, "a comparison that is ok has one"
    assert record.baseline is not None, "a comparison that is ok has both sides"
    assert record.candidate is not None, "a comparison that is ok has both sides"
    git, torch = record.environment.git, record.environment.system.torch
    commit = "" if git is None else f", commit `{git.commit[:7]}`{' (changed)' * git.dirty}"
    version = "" if torch is None else f", torch {torch.version}"
    return (
        f"**{record.name}**: {record.candidate.name}, against {record.baseline.name}; "
        f"{len(record.candidate.rows)} rows on {machine(record)}{version}{commit}. "
        f"Equality: {record.equality.compared}: **{record.equality.seen:g}** "
        f"(limit {record.equality.limit:g})."
    )


def median(values: Sequence[float]) -> Estimate:
    """Return the median with its interval, without one below six values."""
    found = percentile(values, 0.5)
    return found or Estimate(statistics.median(values), None, None, len(values))


def column(side: Measurement | None, name: str, scale: float = 1.0) -> Estimate:
    """Return the median of a column, times `scale`; raises RecordError where it is missing."""
    values = [] if side is None else [row[name] for row in side.rows if name in row]
    numbers = [value * scale for value in values if isinstance(value, int | float)]
    if side is None or not numbers:
        raise RecordError(f"column {name}: no row of {'no side' if side is None else side.name}")
    return median(numbers)


def ratios(record: Record, pattern: str = ".*") -> dict[str, Estimate]:
    """Return the ratios whose whole names match, in the order of their numbers."""
    found = {
        name: ratio_estimate(record, ratio)
        for name, ratio in record.summary.items()
        if re.fullmatch(pattern, name)
    }
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def noises(record: Record) -> dict[str, Estimate]:
    """Return the noise of every ratio that has one."""
    return {name: one.noise for name, one in record.summary.items() if one.noise is not None}


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    rows = [[str(cell).replace("|", "/") for cell in row] for row in (head, *lines)]
    rows.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def ratio_lines(record: Record) -> str:
    """Return a Markdown table of the ratios, their noise and what they let one say."""
    lines = [
        (
            name,
            text_of(estimate),
            "" if one.noise is None else text_of(one.noise),
            one.verdict or "",
        )
        for name, estimate in ratios(record).items()
        for one in (record.summary[name],)
    ]
    return table(("ratio", "value [interval]", "noise", "verdict"), lines)


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort numbers by their value and words by their letters."""
    parts = re.split(r"(\d+)", text)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
