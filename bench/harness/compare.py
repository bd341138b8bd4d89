"""Two targets on one load: equal first, then, in turn, the machine's noise and both of them.

A pair is one request asked of both, the second pair in the other order, and so on: what drifts,
and what hits the first or the second of a pair, cancels. Before each pair comes one with the
baseline on both sides: the noise, which holds all that is not the candidate, at the same time.
Taken as a block before the comparison it missed what became busy later.
Half-way both are opened anew in the other order: the same engine is some per cent slower or faster
by when it was loaded, as it got other memory.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from bench.figures import OK
from bench.harness.drive import ask_once, warm_up
from bench.harness.equality import check_equality
from bench.harness.jobs import Job, job, kinds_of
from bench.harness.load import Closed, Load
from bench.harness.measure import largest_of
from bench.harness.target import COSTS, OpenTarget, Target, TargetInfo
from bench.records import AGAIN, ConfigValue, EqualityCheck, Measurement, Record, Row, pair_ratios
from bench.registry import Context
from kit.errors import ConfigError, KitError


class RequestFailedError(KitError):
    """A request of a comparison failed, so its time means nothing."""


@dataclass(frozen=True)
class Pairs:
    """What was measured in turn."""

    noise: tuple[Row, ...] = ()
    baseline: tuple[Row, ...] = ()
    candidate: tuple[Row, ...] = ()

    def __add__(self, later: Pairs) -> Pairs:
        return Pairs(
            self.noise + later.noise,
            self.baseline + later.baseline,
            self.candidate + later.candidate,
        )


def check_comparable(load: Load) -> None:
    """Raise ConfigError for a load whose requests cannot be asked of two targets in turn."""
    arrivals = load.arrivals
    if not isinstance(arrivals, Closed) or arrivals.concurrency != 1 or load.requests is None:
        raise ConfigError(
            "arrivals",
            "two targets are asked in turn, one request at a time",
            value=arrivals.kind,
            remedy="compare on a load with kind closed, concurrency 1 and a number of requests; "
            "of other loads compare the records of two runs",
        )


def compare(
    context: Context,
    load: Load,
    open_baseline: OpenTarget,
    open_candidate: OpenTarget,
    parameters: Mapping[str, JsonValue] | None = None,
) -> Record:
    """Compare two targets in `load.requests` pairs, with as many for the noise between them.

    Raises ConfigError as check_comparable; RequestFailedError when a request fails.
    """
    check_comparable(load)
    requests = requests_of(load)
    half = math.ceil(len(requests) / 2)
    load_before = os.getloadavg()[0]
    with open_baseline() as baseline, open_candidate() as candidate:
        infos = (baseline.describe(), candidate.describe())
        equality = check_equality(baseline, candidate, kinds_of(load))
        pairs = Pairs()
        if equality.equal:
            pairs += measure_pairs(load, requests[:half], baseline, candidate)
        facts = (baseline.facts(), candidate.facts())
    if equality.equal and requests[half:]:
        with open_candidate() as candidate, open_baseline() as baseline:
            pairs += measure_pairs(load, requests[half:], baseline, candidate)
    asked: dict[str, JsonValue] = {
        "load": load.as_json(),
        "prompts_sha256": load.prompts_sha256,
        "order": "a pair of the noise, a pair of the comparison; every second one in reverse; "
        "both opened anew for the second half, in the other order",
        "load_average_1min": [load_before, os.getloadavg()[0]],
        **_targets(infos),
        **(parameters or {}),
    }
    findings = _findings(pairs, facts) if equality.equal else {}
    return _record(context, infos, equality, pairs, asked, findings)


def requests_of(load: Load) -> range:
    """Return the indices of a comparable load's requests."""
    assert load.requests is not None, "check_comparable"
    return range(load.requests)


def measure_pairs(load: Load, requests: range, baseline: Target, candidate: Target) -> Pairs:
    """Warm both up, then take noise and comparison in turn; raises RequestFailedError."""
    for target in (baseline, candidate):
        warm_up(target, load)
    noise, both = [], []
    for at in requests:
        one = job(load, at)
        noise.append(_pair(at, one, baseline, baseline))
        both.append(_pair(at, one, baseline, candidate))
    return Pairs(
        noise=tuple(_with_again(first, second) for first, second in noise),
        baseline=tuple(first for first, _ in both),
        candidate=tuple(second for _, second in both),
    )


def compared_columns(pairs: Pairs) -> tuple[str, ...]:
    """Return the costs that every row of both sides holds."""
    rows = (*pairs.baseline, *pairs.candidate)
    return tuple(column for column in COSTS if all(row.get(column) for row in rows))


def _pair(at: int, one: Job, baseline: Target, candidate: Target) -> tuple[Row, Row]:
    """Ask both; returns the baseline's row first, whichever was asked first."""
    targets = (baseline, candidate) if at % 2 == 0 else (candidate, baseline)
    rows = [{**ask_once(target, one), "request": at} for target in targets]
    for row in rows:
        if row["status"] != OK:
            raise RequestFailedError(
                f"request {at} of a comparison: {row['status']}: {row['message']}"
            )
    if at % 2:
        rows.reverse()
    return rows[0], rows[1]


def _with_again(first: Row, second: Row) -> Row:
    return {c: first[c] for c in COSTS if c in first} | {
        c + AGAIN: second[c] for c in COSTS if c in second
    }


def _targets(infos: tuple[TargetInfo, TargetInfo]) -> dict[str, JsonValue]:
    """Name what both sides tell of themselves, once where they agree."""
    found: dict[str, JsonValue] = {}
    names = infos[0].parameters.keys() | infos[1].parameters.keys()
    for name in sorted(names):
        told = [info.parameters.get(name) for info in infos]
        if told[0] == told[1]:
            found[name] = told[0]
        else:
            found[f"baseline.{name}"], found[f"candidate.{name}"] = told
    return found


def _findings(pairs: Pairs, facts: tuple[Mapping[str, float], ...]) -> dict[str, float]:
    """Return the baseline's drift and what the targets hold and fit."""
    times = [float(str(row["latency_s"])) for row in pairs.baseline]
    third = max(1, len(times) // 3)
    found = {
        "baseline drift, last third over first": statistics.median(times[-third:])
        / statistics.median(times[:third])
    }
    sides = (("baseline", pairs.baseline), ("candidate", pairs.candidate))
    for (side, rows), told in zip(sides, facts, strict=True):
        found |= {f"{side} {name}": value for name, value in _capacity(told, rows).items()}
    return found


def _capacity(facts: Mapping[str, float], rows: tuple[Row, ...]) -> dict[str, float]:
    """Return bytes and pages of the rows' largest request, and how many such the pool holds."""
    found: dict[str, float] = {}
    for column in ("kv_bytes", "pages"):
        if largest := largest_of(rows, column):
            found[f"{column} of a request"] = largest
    if pool := facts.get("pool_pages"):
        found["pages of the pool"] = pool
        if pages := found.get("pages of a request"):
            found["requests that the pool holds"] = pool // pages
    return found


def _record(
    context: Context,
    infos: tuple[TargetInfo, TargetInfo],
    equality: EqualityCheck,
    pairs: Pairs,
    parameters: Mapping[str, JsonValue],
    findings: Mapping[str, float],
) -> Record:
    config: dict[str, ConfigValue] = {}
    for side, info in zip(("baseline", "candidate"), infos, strict=True):
        config |= {f"{side}.{name}": value for name, value in info.config.items()}
    return context.record(
        parameters=parameters,
        equality=equality,
        baseline=Measurement(infos[0].label, pairs.baseline),
        candidate=Measurement(infos[1].label, pairs.candidate),
        ratios=pair_ratios(compared_columns(pairs)),
        paired=True,
        noise=Measurement(f"{infos[0].label}, against itself", pairs.noise),
        config=config,
        findings=findings,
    )
