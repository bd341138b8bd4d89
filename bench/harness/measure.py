"""One target under a load, as a record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from bench.figures import OK, failures, figures_of
from bench.harness.drive import drive, warm_up
from bench.harness.load import Load
from bench.harness.target import Target
from bench.records import SCHEMA_VERSION, Failure, Measurement, Record, Row
from bench.registry import Context


def measure(
    context: Context,
    load: Load,
    target: Target,
    parameters: Mapping[str, JsonValue] | None = None,
) -> Record:
    """Warm a target up, run the load; the record is failed when no request was answered well."""
    info = target.describe()
    num_warmup = warm_up(target, load)
    at_rest = target.facts()
    load_before = os.getloadavg()[0]
    rows = drive(target, load)
    asked: dict[str, JsonValue] = {
        "load": load.as_json(),
        "prompts_sha256": load.prompts_sha256,
        "warmup_requests": num_warmup,
        "load_average_1min": [load_before, os.getloadavg()[0]],
        **info.parameters,
        **(parameters or {}),
    }
    good = any(row["status"] == OK for row in rows)
    return Record(
        schema_version=SCHEMA_VERSION,
        name=context.name,
        kind="load",
        status="ok" if good else "failed",
        environment=context.environment,
        command=context.command,
        config=info.config,
        parameters=asked,
        candidate=Measurement(info.label, rows),
        figures=figures_of(rows, load.slo_latency_s) if rows else {},
        findings=_findings(rows, at_rest, target.facts()),
        error=None if good else Failure("NoPicture", _why(rows)),
    )


def largest_of(rows: Iterable[Row], column: str) -> float:
    """Return the largest number in a column; 0 where no row holds one."""
    values = (row.get(column) for row in rows)
    return max((value for value in values if isinstance(value, int | float)), default=0)


def _findings(
    rows: tuple[Row, ...], before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """Return memory and pages, at rest and at their peak, as far as the target tells them."""
    found: dict[str, float] = {}
    for when, facts in (("before", before), ("after", after)):
        for name in ("memory_held_bytes", "pages_used"):
            if name in facts:
                found[f"{name} at rest, {when}"] = facts[name]
    for name in ("pages_used_peak", "pool_pages", "page_bytes"):
        if name in after:
            found[name] = after[name]
    for column in ("memory_peak_bytes", "pages", "kv_bytes"):
        if largest := largest_of(rows, column):
            found[f"{column}, largest of a request"] = largest
    if rows:
        found["latest start behind schedule_s"] = max(
            float(str(row["sent_s"])) - float(str(row["scheduled_s"])) for row in rows
        )
    return found


def _why(rows: tuple[Row, ...]) -> str:
    if not rows:
        return "no request was due before the load's end"
    ends = ", ".join(f"{count} {name}" for name, count in failures(rows).items())
    return f"no request got its pictures: {ends}; the first one: {rows[0]['message']}"
