"""Latency counts from the schedule, warm-up does not count, and every request is asked once."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from bench_loads import PainterTarget, small_load
from images_stub import images_server, paint

from bench.harness.drive import drive, warm_up
from bench.harness.load import Closed, Poisson, Trace
from bench.harness.server_target import ServerTarget
from bench.records import Row

BUSY_S = 0.1


def seconds(row: Row, column: str) -> float:
    value = row[column]
    assert isinstance(value, float)
    return value


def test_waiting_in_the_clients_own_queue_is_latency() -> None:
    """A server that takes 0.1 s, a request each 10 ms, one at a time: the tenth waits for nine."""

    def slow(body: dict[str, object]) -> tuple[int, bytes]:
        time.sleep(BUSY_S)
        return paint(body)

    offsets = tuple(0.01 * at for at in range(10))
    load = small_load(requests=None, arrivals=Trace("trace", offsets, concurrency=1))
    with images_server(slow) as url, closing(ServerTarget(url)) as target:
        rows = drive(target, load)
    assert [row["scheduled_s"] for row in rows] == pytest.approx(list(offsets), abs=1e-9)
    assert all(row["status"] == "ok" for row in rows)
    last = rows[-1]
    assert seconds(last, "latency_s") >= 10 * BUSY_S - 0.09
    assert seconds(last, "service_s") < seconds(last, "latency_s") - 0.5
    assert seconds(last, "sent_s") >= 9 * BUSY_S


def test_open_arrivals_do_not_wait_for_answers() -> None:
    load = small_load(requests=None, arrivals=Trace("trace", (0.0, 0.0, 0.05, 0.05)))
    rows = drive(PainterTarget(work=lambda: time.sleep(BUSY_S)), load)
    # One after the other they would take 0.4 s.
    assert max(seconds(row, "done_s") for row in rows) < 3 * BUSY_S
    for row in rows:
        assert seconds(row, "latency_s") >= BUSY_S
        assert seconds(row, "sent_s") >= seconds(row, "scheduled_s")


def test_a_closed_client_asks_again_when_it_has_its_answer() -> None:
    load = small_load(requests=6, arrivals=Closed("closed", concurrency=2))
    target = PainterTarget(work=lambda: time.sleep(0.02))
    rows = drive(target, load)
    assert [row["request"] for row in rows] == list(range(6))
    assert sorted(one.seed for one in target.asked) == list(range(7, 13))
    starts = sorted(seconds(row, "sent_s") for row in rows)
    ends = sorted(seconds(row, "done_s") for row in rows)
    # At most two on their way at once: the third starts after the first has ended, and so on.
    assert all(start >= end for start, end in zip(starts[2:], ends[:-2], strict=True))


def test_duration_ends_a_load() -> None:
    load = small_load(requests=None, duration_s=0.2)
    rows = drive(PainterTarget(work=lambda: time.sleep(0.03)), load)
    assert 2 <= len(rows) <= 7
    assert all(seconds(row, "scheduled_s") <= 0.2 for row in rows)
    none = small_load(
        requests=None, duration_s=1e-6, arrivals=Poisson("poisson", rate_per_s=1.0, seed=1)
    )
    assert drive(PainterTarget(), none) == ()


def test_warm_up_asks_for_every_kind_and_counts_nowhere() -> None:
    times = iter([0.3] * 4)
    target = PainterTarget(work=lambda: time.sleep(next(times, 0.0)))
    load = small_load(sizes=("16x16", "32x16"), warmup=2, requests=4)
    assert warm_up(target, load) == 4
    assert [one.size for one in target.asked] == ["16x16"] * 2 + ["32x16"] * 2
    rows = drive(target, load)
    assert len(rows) == 4
    assert max(seconds(row, "latency_s") for row in rows) < 0.2
