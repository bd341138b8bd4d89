"""Figures of a load by hand, and what too few rows do not carry."""

from __future__ import annotations

from typing import Any

import pytest

from bench.figures import failures, figures_of, missing


def rows(num: int, **columns: Any) -> list[dict[str, Any]]:
    """One request a second, each taking as many seconds as its number."""
    return [
        {
            "status": "ok",
            "latency_s": float(at),
            "service_s": 0.5,
            "done_s": float(at),
            "n": 1,
            "size": "16x16",
            "steps": 2,
            "guidance": 5.0,
            **columns,
        }
        for at in range(1, num + 1)
    ]


def test_by_hand() -> None:
    found = figures_of(rows(40, n=3, decode_s=0.25), slo_latency_s=10.0)
    assert found["success_share"].value == 1.0
    assert found["slo_share"].value == 0.25
    assert found["throughput_per_s"].value == 3.0
    assert found["goodput_per_s"].value == 10 * 3 / 40
    assert found["latency_s p50"].value == 20.0
    assert found["latency_s p90"].value == 36.0
    assert found["service_s p50"].value == 0.5
    assert found["decode_s p50"].value == 0.25
    assert "encode_s p50" not in found
    assert {"latency_s p95", "latency_s p99"}.isdisjoint(found)


def test_percentiles_that_the_sample_does_not_carry_are_named() -> None:
    assert missing(rows(40)) == {"p95": 72, "p99": 368}
    assert missing(rows(5)) == {"p50": 6, "p90": 36, "p95": 72, "p99": 368}
    assert missing(rows(368)) == {}
    assert "latency_s p99" in figures_of(rows(368), None)
    assert "latency_s p99" not in figures_of(rows(367), None)


def test_failures_count_in_shares_and_in_nothing_else() -> None:
    good = rows(10)
    bad = [{**row, "status": "overloaded", "latency_s": 0.001} for row in rows(10)]
    found = figures_of(good + bad, slo_latency_s=100.0)
    alone = figures_of(good, slo_latency_s=100.0)
    assert found["success_share"].value == 0.5
    assert found["slo_share"].value == 0.5
    assert found["latency_s p50"] == alone["latency_s p50"]
    assert found["throughput_per_s"] == alone["throughput_per_s"]
    assert failures(good + bad) == {"overloaded": 10}
    # Who waits for a failure has waited: goodput is over the time of all requests.
    late = figures_of([*good, {**bad[0], "done_s": 20.0}], slo_latency_s=100.0)
    assert late["goodput_per_s"].value == 10 / 20
    none = figures_of(bad, slo_latency_s=100.0)
    assert none.keys() == {"success_share", "slo_share"}
    assert none["success_share"].value == 0.0


def test_kinds_are_told_apart_where_there_are_several() -> None:
    small, large = rows(6), rows(6, size="32x16", latency_s=9.0)
    found = figures_of(small + large, None)
    assert found["latency_s p50, 16x16, 2 steps, guidance 5"].value == 3.0
    assert found["latency_s p50, 32x16, 2 steps, guidance 5"].value == 9.0
    assert not [name for name in figures_of(small, None) if "16x16" in name]


def test_no_limit_no_goodput() -> None:
    assert {"slo_share", "goodput_per_s"}.isdisjoint(figures_of(rows(6), None))


@pytest.mark.parametrize("num", [1, 5])
def test_few_rows_have_a_rate_without_interval(num: int) -> None:
    found = figures_of(rows(num), None)["throughput_per_s"]
    assert (found.value, found.low, found.num) == (1.0, None, num)
