"""The record of a benchmark run: what ran, where, against what, and every raw number.

A record is one JSON file. It is checked as a whole whenever it is made or read, so a record that
exists can be trusted to be complete: a successful comparison holds its baseline, proves that both
sides computed the same, and its summary follows from its raw rows; so do the figures of a load.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import JsonValue, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from bench.environment import Environment
from bench.figures import figures_of
from bench.statistics import RATIO_CONFIDENCE, Estimate, Verdict, judge, paired_ratio
from kit.errors import KitError
from kit.telemetry.strict import STRICT

SCHEMA_VERSION: Final = 1

AGAIN: Final = " again"
"""Ends the column that holds a cost measured a second time, in the rows of the noise."""

Kind = Literal["comparison", "load"]
Status = Literal["ok", "failed", "refused"]
Row = Mapping[str, str | int | float | bool | None]


class RecordError(KitError):
    """A record cannot be read, or does not hold what a record must hold."""

    exit_code = 2


@dataclass(frozen=True, config=STRICT)
class ConfigValue:
    """One value of the resolved configuration."""

    value: JsonValue
    source: str
    """Who set it."""


@dataclass(frozen=True, config=STRICT)
class Measurement:
    """The raw numbers of one side of a comparison."""

    name: str
    """What was measured, in words that tell it from the other side."""

    rows: tuple[Row, ...]
    """One row a repeat. What a ratio compares is a cost: the lower number is the better one."""


@dataclass(frozen=True, config=STRICT)
class EqualityCheck:
    """Proof that both sides did the same work, made before they were timed."""

    compared: str
    limit: float
    """The largest difference that still counts as equal."""

    seen: float
    equal: bool

    @classmethod
    def of(cls, compared: str, *, limit: float, seen: float) -> Self:
        """Return the check of a difference that was seen."""
        return cls(compared, limit, seen, equal=seen <= limit)

    @model_validator(mode="after")
    def _follows(self) -> Self:
        if self.seen < 0:
            raise ValueError(f"seen is {self.seen}, and no difference is below 0")
        if self.equal != (self.seen <= self.limit):
            raise ValueError(f"equal is {self.equal}, but seen {self.seen}, limit {self.limit}")
        return self


@dataclass(frozen=True, config=STRICT)
class Ratio:
    """One column of rows over another; columns are named `candidate.X` or `baseline.X`."""

    numerator: str
    denominator: str
    best: float
    """Lowest of the numerator over lowest of the denominator."""

    median: float
    """Median over median."""

    paired: Estimate | None = None
    """Median of the ratios of row to row; None where rows were not measured in pairs."""

    noise: Estimate | None = None
    """The baseline over itself, in pairs; None where it was not measured."""

    verdict: Verdict | None = None
    """What the last two carry together; None where one is missing."""


@dataclass(frozen=True, config=STRICT)
class Failure:
    """Why there is no result."""

    kind: str
    """Name of the error's class."""

    message: str
    frames: tuple[str, ...] = ()
    """`module:line in function`, outermost first."""


@dataclass(frozen=True, config=STRICT)
class Record:
    """One run of one workload."""

    schema_version: Literal[1]
    name: str
    status: Status
    """failed: it broke or the sides were not equal; refused: this deployment cannot run it."""

    environment: Environment
    command: tuple[str, ...]
    config: Mapping[str, ConfigValue]
    """The resolved deployment; empty for a workload that has none."""

    parameters: Mapping[str, JsonValue]
    """What the workload did: sizes, steps, seeds, warm-up counts, limits."""

    baseline: Measurement | None = None
    candidate: Measurement | None = None
    equality: EqualityCheck | None = None
    noise: Measurement | None = None
    """The baseline against itself, between the rows: a row holds a cost X and `X again`."""

    summary: Mapping[str, Ratio] = field(default_factory=dict)
    findings: Mapping[str, float] = field(default_factory=dict)
    """What the raw rows say beside costs, such as the share of right pictures."""

    kind: Kind = "comparison"
    """load: one side only, its rows in `candidate`, one a request."""

    figures: Mapping[str, Estimate] = field(default_factory=dict)
    """Of a load, from its rows: latency, throughput, goodput."""

    error: Failure | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.status == "ok":
            self._check_success()
        elif self.error is None:
            raise ValueError(f"error: a record with status {self.status} must say why")
        if self.summary and recompute(self) != self.summary:
            raise ValueError("summary: does not follow from the raw rows")
        if self.figures and not _follow(self.figures, recompute_figures(self)):
            raise ValueError("figures: do not follow from the raw rows")
        return self

    def _check_success(self) -> None:
        if self.error is not None:
            raise ValueError("error: a record with status ok has none")
        if self.kind == "load":
            self._check_load()
        else:
            self._check_comparison()

    def _check_load(self) -> None:
        if self.candidate is None or not self.candidate.rows:
            raise ValueError("candidate.rows: a record with status ok has at least one")
        for name in ("baseline", "equality", "noise"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: a load has one side")
        if not self.figures:
            raise ValueError("figures: a load with status ok has some")

    def _check_comparison(self) -> None:
        if self.figures:
            raise ValueError("figures: only a load has them")
        for name in ("baseline", "candidate", "equality"):
            if getattr(self, name) is None:
                raise ValueError(f"{name}: a record with status ok must have one")
        for name, side in (("baseline", self.baseline), ("candidate", self.candidate)):
            if side is not None and not side.rows:
                raise ValueError(f"{name}.rows: a record with status ok has at least one")
        if self.equality is not None and not self.equality.equal:
            raise ValueError("equality.equal: a record with status ok has equal sides")
        if not self.summary:
            raise ValueError("summary: a record with status ok has at least one ratio")


def pair_ratios(columns: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return the ratios of a comparison: each cost of the candidate over the baseline's."""
    return {
        column.removesuffix("_s"): (f"candidate.{column}", f"baseline.{column}")
        for column in columns
    }


def summarise(
    baseline: Measurement,
    candidate: Measurement,
    ratios: Mapping[str, tuple[str, str]],
    *,
    paired: bool = False,
    noise: Measurement | None = None,
    confidence: float = RATIO_CONFIDENCE,
) -> dict[str, Ratio]:
    """Compute named (numerator, denominator) pairs of columns, e.g. `candidate.step_s`.

    `paired`: row i of one side was measured next to row i of the other. A ratio whose columns
    `noise` holds gets a verdict. Raises ValueError for a column that is not a number in every row,
    or not above zero below the line.
    """
    sides = {"baseline": baseline, "candidate": candidate}
    return {
        name: _ratio(sides, above, below, paired, noise, confidence)
        for name, (above, below) in ratios.items()
    }


def recompute(record: Record) -> dict[str, Ratio]:
    """Compute the summary of a record from its raw rows anew; ValueError as in summarise."""
    if record.baseline is None or record.candidate is None:
        raise ValueError("summary: there are no rows of both sides to compute it from")
    found: dict[str, Ratio] = {}
    for name, ratio in record.summary.items():
        found |= summarise(
            record.baseline,
            record.candidate,
            {name: (ratio.numerator, ratio.denominator)},
            paired=ratio.paired is not None,
            noise=record.noise,
            confidence=ratio.paired.confidence if ratio.paired else RATIO_CONFIDENCE,
        )
    return found


def recompute_figures(record: Record) -> dict[str, Estimate]:
    """Compute the figures of a load from its rows anew; ValueError when something is missing."""
    load = record.parameters.get("load")
    if record.candidate is None or not isinstance(load, dict):
        raise ValueError("figures: there are no rows and no load to compute them from")
    limit = load.get("slo_latency_s")
    return figures_of(record.candidate.rows, limit if isinstance(limit, int | float) else None)


def median_of(record: Record, column: str) -> float:
    """Return the median of one column, e.g. `candidate.step_s`; ValueError as in summarise."""
    assert record.baseline is not None, "a record with a summary has both sides"
    assert record.candidate is not None, "a record with a summary has both sides"
    sides = {"baseline": record.baseline, "candidate": record.candidate}
    return statistics.median(_column(sides, column))


def load(path: Path) -> Record:
    """Read a record; raises RecordError that names every field that is missing or wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"record {path}: cannot be read: {error.strerror}") from error
    try:
        return _ADAPTER.validate_json(content)
    except ValidationError as error:
        problems = [_problem_text(problem["loc"], problem["msg"]) for problem in error.errors()]
        raise RecordError("\n  ".join([f"record {path} is refused:", *problems])) from error


def make_room(path: Path) -> None:
    """Make the folder of a record to come, so that a long run does not end without a place.

    Raises RecordError when no file can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"record {path}: no folder for it: {error.strerror}") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise RecordError(
            f"record {path}: cannot be written there; name a file in a folder of yours"
        )


def save(record: Record, path: Path) -> None:
    """Write a record with sorted keys; the file is replaced as a whole or not at all.

    Its folder exists, see `make_room`. Raises RecordError when the file cannot be written.
    """
    content = json.dumps(_ADAPTER.dump_python(record, mode="json"), indent=1, sort_keys=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(content + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise RecordError(f"record {path}: cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _ratio(
    sides: Mapping[str, Measurement],
    numerator: str,
    denominator: str,
    paired: bool,
    noise: Measurement | None,
    confidence: float,
) -> Ratio:
    above, below = _column(sides, numerator), _column(sides, denominator)
    if min(below) <= 0:
        raise ValueError(f"summary: {denominator} must be above zero in every row")
    if paired and len(above) != len(below):
        raise ValueError(f"summary: {numerator}: pairs need as many rows on both sides")
    estimate = paired_ratio(above, below, confidence) if paired else None
    column = denominator.partition(".")[2]
    spread = None if noise is None else _noise_of(noise, column, confidence)
    return Ratio(
        numerator=numerator,
        denominator=denominator,
        best=min(above) / min(below),
        median=statistics.median(above) / statistics.median(below),
        paired=estimate,
        noise=spread,
        verdict=None if estimate is None or spread is None else judge(estimate, spread),
    )


def _noise_of(noise: Measurement, column: str, confidence: float) -> Estimate | None:
    """Return the ratio of a cost to itself; None where the noise does not hold it."""
    again = column + AGAIN
    if any(column not in row or again not in row for row in noise.rows):
        return None
    sides = {"noise": noise}
    above, below = (_column(sides, f"noise.{name}") for name in (again, column))
    return paired_ratio(above, below, confidence)


def _follow(stored: Mapping[str, Estimate], computed: Mapping[str, Estimate]) -> bool:
    """Whether two sets of figures agree; sums may differ in their last bits between machines."""

    def near(one: float | None, other: float | None) -> bool:
        if one is None or other is None:
            return one is other
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)

    return stored.keys() == computed.keys() and all(
        near(a.value, b.value) and near(a.low, b.low) and near(a.high, b.high) and a.num == b.num
        for a, b in ((stored[name], computed[name]) for name in stored)
    )


def _column(sides: Mapping[str, Measurement], column: str) -> list[float]:
    side, _, name = column.partition(".")
    if side not in sides or not sides[side].rows:
        raise ValueError(f"summary: {column}: no rows; write candidate.NAME or baseline.NAME")
    values: list[float] = []
    for at, row in enumerate(sides[side].rows):
        value = row.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"summary: {side}.rows.{at}.{name} must be a number, got {value!r}")
        values.append(value)
    return values


def _problem_text(location: tuple[str | int, ...], message: str) -> str:
    """Say `field.path: what is wrong`; checks of the whole record name their field themselves."""
    message = message.removeprefix("Value error, ")
    return f"{'.'.join(map(str, location))}: {message}" if location else message


_ADAPTER = TypeAdapter(Record)
