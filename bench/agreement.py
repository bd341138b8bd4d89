"""Two records of the same thing held against each other: equality exactly, numbers by intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from bench.records import Measurement, Ratio, Record
from bench.statistics import Estimate, overlap, ratio_of_medians
from kit.errors import ConfigError

_HOW_IT_WENT = {"load_average_1min", "load_average_1min_at_end"}
"""Parameters that say how a run went, not what it did."""

_WHAT_WAS_MEASURED = {
    *("target", "server", "model", "versions", "device", "dtype", "kernel"),
    *("checkpoint", "checkpoint_sha256", "checkpoint_fingerprint"),
}
"""Parameters in which records of two targets may differ, with or without the name of a side."""


@dataclass(frozen=True)
class Check:
    """One thing that both records hold."""

    name: str
    first: str
    second: str
    agrees: bool | None
    """None: it cannot be told, `note` says why."""

    note: str = ""


def check(first: Record, second: Record) -> list[Check]:
    """Hold two records against each other; raises ConfigError when they are not of the same thing.

    Equality and hashes agree when they are equal; other hashes where sums round otherwise tell
    nothing. Ratios agree when their intervals overlap. Times agree in the same way, and only where
    both come from the same kind of machine.
    """
    _check_comparable(first, second)
    checks = [Check("status", first.status, second.status, first.status == second.status)]
    if first.equality is not None and second.equality is not None:
        seen = (first.equality.seen, second.equality.seen)
        one, other = (f"{value:g}" for value in seen)
        checks.append(Check(first.equality.compared, one, other, seen[0] == seen[1]))
    checks += _pictures(first, second)
    for name in first.summary.keys() & second.summary.keys():
        pair = [ratio_estimate(record, record.summary[name]) for record in (first, second)]
        checks.append(_numbers(f"ratio {name}", pair[0], pair[1]))
    machines = {machine(record) for record in (first, second)}
    for name in first.figures.keys() & second.figures.keys():
        found = _numbers(name, first.figures[name], second.figures[name])
        if len(machines) > 1:
            found = Check(found.name, found.first, found.second, None, "other machine")
        checks.append(found)
    return checks[:1] + sorted(checks[1:], key=lambda one: one.name)


def environment_differences(first: Record, second: Record) -> list[str]:
    """Say in what the surroundings, the deployments and the targets of two records differ."""
    told: list[dict[str, object]] = []
    for record in (first, second):
        system, git = record.environment.system, record.environment.git
        told.append(
            {
                "python": system.python,
                "commit": git.commit[:7] + (", changed" if git.dirty else "") if git else None,
                **{f"package {name}": version for name, version in system.packages.items()},
                **_rounding(record),
                **{name: setting.value for name, setting in record.config.items()},
                **{n: value for n, value in record.parameters.items() if _is_identity(n)},
            }
        )
    return [
        f"{name}: {told[0].get(name)} and {told[1].get(name)}" for name in _names_that_differ(*told)
    ]


def machine(record: Record) -> str:
    """Name what computed: accelerators, or the processor and how many of its cores."""
    system = record.environment.system
    if system.accelerators:
        return ", ".join(one.name for one in system.accelerators)
    return f"{system.cpu}, {system.num_usable_cpus} CPUs"


def ratio_estimate(record: Record, ratio: Ratio) -> Estimate:
    """Return a ratio with its interval: that of its pairs, else from the rows of both sides."""
    if ratio.paired is not None:
        return ratio.paired
    return ratio_of_medians(_column(record, ratio.numerator), _column(record, ratio.denominator))


def text_of(estimate: Estimate) -> str:
    """Return `value [low, high]`, or the value alone where the sample is too small."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def _check_comparable(first: Record, second: Record) -> None:
    if (first.name, first.kind) != (second.name, second.kind):
        raise ConfigError(
            "records",
            "are of different things",
            value=f"{first.kind} {first.name} and {second.kind} {second.name}",
            remedy="compare two records of one load or of one workload",
        )
    differ = _differences("", first.parameters, second.parameters)
    asked = [name for name in differ if not _is_identity(name)]
    if asked:
        raise ConfigError(
            "records",
            f"did not ask for the same: they differ in {', '.join(asked)}",
            remedy="run one load on both",
        )


def _is_identity(name: str) -> bool:
    return name.removeprefix("baseline.").removeprefix("candidate.") in _WHAT_WAS_MEASURED


def _differences(
    prefix: str, first: Mapping[str, JsonValue], second: Mapping[str, JsonValue]
) -> list[str]:
    """Return the dotted names of the parameters in which two runs differ."""
    found: list[str] = []
    for name in sorted(first.keys() | second.keys()):
        one, other = first.get(name), second.get(name)
        if isinstance(one, dict) and isinstance(other, dict) and not _is_identity(name):
            found += _differences(f"{prefix}{name}.", one, other)
        elif one != other and name not in _HOW_IT_WENT:
            found.append(prefix + name)
    return found


def _rounding(record: Record) -> dict[str, object]:
    """Return the surroundings that decide in which order sums are taken, and so how they round."""
    torch = record.environment.system.torch
    return {
        "machine": machine(record),
        "vector instructions": torch.cpu_capability if torch else None,
        "threads": torch.num_threads if torch else None,
        "package torch": torch.version if torch else None,
    }


def _names_that_differ(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    names = sorted(first.keys() | second.keys())
    return [name for name in names if first.get(name) != second.get(name)]


def _pictures(first: Record, second: Record) -> list[Check]:
    """Compare the hashes of the pictures of requests that both records hold."""
    found = []
    other = _names_that_differ(_rounding(first), _rounding(second))
    for side in ("baseline", "candidate"):
        hashes = [_hashes(getattr(record, side)) for record in (first, second)]
        shared = hashes[0].keys() & hashes[1].keys()
        if not shared:
            continue
        same = sum(hashes[0][at] == hashes[1][at] for at in shared)
        pair = (f"{side}: pictures with equal pixels", f"{len(shared)}", f"{same}")
        if same < len(shared) and other:
            found.append(Check(*pair, None, f"other {', '.join(other)}"))
        else:
            found.append(Check(*pair, same == len(shared)))
    return found


def _hashes(side: Measurement | None) -> dict[object, object]:
    rows = () if side is None else side.rows
    return {row["request"]: row["sha256"] for row in rows if row.get("sha256") is not None}


def _numbers(name: str, first: Estimate, second: Estimate) -> Check:
    if first.low is None or second.low is None:
        return Check(name, text_of(first), text_of(second), None, "too few rows for an interval")
    return Check(name, text_of(first), text_of(second), overlap(first, second))


def _column(record: Record, column: str) -> list[float]:
    side, _, name = column.partition(".")
    measurement: Measurement = getattr(record, side)
    return [float(str(row[name])) for row in measurement.rows]
