"""Records as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping

from bench.agreement import machine, ratio_estimate, text_of
from bench.records import Record


def report(records: Mapping[str, Record]) -> str:
    """Return three tables: the records, by the names of their files, their ratios, their figures.

    A table without lines is left out.
    """
    tables = [
        table(("record", "status", "equality", "machine", "torch", "commit"), _heads(records)),
        table(
            ("record", "ratio", "candidate / baseline", "noise", "verdict", "rows"),
            _ratios(records),
        ),
        table(("record", "figure", "value", "requests"), _figures(records)),
    ]
    return "\n".join(filter(None, tables))


def _heads(records: Mapping[str, Record]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name, record in records.items():
        equality, git = record.equality, record.environment.git
        torch = record.environment.system.torch
        lines.append(
            (
                name,
                record.status if record.error is None else f"{record.status}: {record.error.kind}",
                "" if equality is None else f"{equality.compared}: {equality.seen:g}",
                machine(record),
                "" if torch is None else torch.version,
                "" if git is None else git.commit[:7] + (", changed" if git.dirty else ""),
            )
        )
    return lines


def _ratios(records: Mapping[str, Record]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name, record in records.items():
        for title, ratio in record.summary.items():
            estimate = ratio_estimate(record, ratio)
            noise = "" if ratio.noise is None else text_of(ratio.noise)
            row = (name, title, text_of(estimate), noise, ratio.verdict or "", str(estimate.num))
            lines.append(row)
    return lines


def _figures(records: Mapping[str, Record]) -> list[tuple[str, ...]]:
    return [
        (name, title, text_of(estimate), str(estimate.num))
        for name, record in records.items()
        for title, estimate in record.figures.items()
    ]


def table(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """Return a Markdown table; nothing without lines."""
    if not lines:
        return ""
    rows = [head, ("---",) * len(head), *lines]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)
