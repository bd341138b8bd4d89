"""What the command line says of a record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.agreement import Check, text_of
from bench.figures import failures, missing
from bench.records import Ratio, Record, median_of


def lines_of(record: Record, path: Path) -> Iterator[str]:
    """Yield the lines of a record that was written to `path`, but for its error."""
    yield f"{record.name}: {record.status}, record in {path}"
    if record.equality is not None:
        check = record.equality
        yield f"  equality: {check.compared}: {check.seen:g} (limit {check.limit:g})"
    if record.baseline is not None and record.candidate is not None:
        yield f"  candidate: {record.candidate.name}; baseline: {record.baseline.name}"
    if record.summary:
        yield "  candidate / baseline, below 1 the candidate costs less:"
        for name, ratio in record.summary.items():
            yield f"    {name}: {_ratio(record, ratio)}"
    for name, estimate in record.figures.items():
        yield f"    {name}: {text_of(estimate)}"
    if record.kind == "load" and record.candidate is not None:
        rows = record.candidate.rows
        for name, needed in missing(rows).items():
            yield f"    latency_s {name}: not from so few requests, it needs {needed}"
        for name, count in failures(rows).items():
            yield f"    {count} of {len(rows)} requests: {name}"
    for name, value in record.findings.items():
        yield f"    {name}: {value:.4g}"


def lines_of_checks(checks: list[Check]) -> Iterator[str]:
    """Yield a line a check."""
    for one in checks:
        told = {True: "agrees", False: "DIFFERS", None: "cannot be told"}[one.agrees]
        note = f" ({one.note})" if one.note else ""
        yield f"  {told}: {one.name}: {one.first} and {one.second}{note}"


def _ratio(record: Record, ratio: Ratio) -> str:
    above, below = (median_of(record, column) for column in (ratio.numerator, ratio.denominator))
    if ratio.paired is None:
        return (
            f"{ratio.median:.4f} by medians ({above:.3g} / {below:.3g} s), "
            f"{ratio.best:.4f} by lowest"
        )
    told = f"{text_of(ratio.paired)} in pairs ({above:.3g} / {below:.3g} s)"
    if ratio.noise is not None:
        told += f"; the baseline over itself {text_of(ratio.noise)}"
    return told if ratio.verdict is None else f"{told}: {ratio.verdict}"
