"""What the rows of a load say: latency, throughput, goodput, where the time went.

A row is one request. `latency_s` counts from the moment at which the request was scheduled,
`service_s` from the moment at which it was sent; a client that falls behind its schedule shows in
the first only. Failed requests count in shares and in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.statistics import Estimate, num_needed, percentile, rate, share_of

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

OK = "ok"
"""`status` of a request that ended with decoded pictures of the asked size."""

_MEDIANS = (
    "service_s",
    "queue_s",
    "first_step_s",
    "later_step_s",
    "decode_s",
    "encode_s",
    "engine_s",
)
"""Columns that a target may tell, of which the median is shown."""

Rows = Sequence[Mapping[str, Any]]


def figures_of(rows: Rows, slo_latency_s: float | None) -> dict[str, Estimate]:
    """Compute every figure that the rows carry; what too few rows carry is absent."""
    good = [row for row in rows if row["status"] == OK]
    found = {"success_share": share_of(len(good), len(rows))}
    if slo_latency_s is not None:
        met = sum(row["latency_s"] <= slo_latency_s for row in good)
        found["slo_share"] = share_of(met, len(rows))
    if not good:
        return found
    ends = sorted(row["done_s"] for row in good)
    gaps = [end - before for before, end in zip([0.0, *ends], ends, strict=False)]
    pictures = sum(row["n"] for row in good) / len(good)
    found["throughput_per_s"] = _times(rate(gaps), pictures)
    if slo_latency_s is not None and (met := found["slo_share"].value * len(rows)):
        # Over the time in which all requests ended: what came too late took its time as well.
        last = max(row["done_s"] for row in rows)
        found["goodput_per_s"] = Estimate(met * pictures / last, None, None, len(rows))
    for name, part in _parts(good).items():
        for title, share in PERCENTILES.items():
            estimate = percentile([row["latency_s"] for row in part], share)
            if estimate is not None:
                found[f"latency_s {title}{name}"] = estimate
    for column in _MEDIANS:
        values = [row[column] for row in good if row.get(column) is not None]
        estimate = percentile(values, PERCENTILES["p50"])
        if estimate is not None:
            found[f"{column} p50"] = estimate
    return found


def missing(rows: Rows) -> dict[str, int]:
    """Return the percentiles of the latency that the rows do not carry: name to requests needed."""
    num_good = sum(row["status"] == OK for row in rows)
    return {
        name: num_needed(share)
        for name, share in PERCENTILES.items()
        if num_good < num_needed(share)
    }


def failures(rows: Rows) -> dict[str, int]:
    """Return how many requests ended in each way but the good one."""
    found: dict[str, int] = {}
    for row in rows:
        if row["status"] != OK:
            found[row["status"]] = found.get(row["status"], 0) + 1
    return found


def _parts(rows: Rows) -> dict[str, Rows]:
    """Return all rows, and those of each kind of picture where there are several."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = f", {row['size']}, {row['steps']} steps, guidance {row['guidance']:g}"
        kinds.setdefault(name, []).append(row)
    return {"": rows} | (kinds if len(kinds) > 1 else {})


def _times(estimate: Estimate, factor: float) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        estimate.value * factor,
        None if low is None else low * factor,
        None if high is None else high * factor,
        estimate.num,
    )
