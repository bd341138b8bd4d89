"""The watch over time limits: in order of time, late entries first when they are due first."""

from __future__ import annotations

import queue
import threading
import time

from engine_gate import PATIENCE_S

from kit.engine.deadlines import Deadlines


def test_requests_expire_in_the_order_of_their_times() -> None:
    expired: queue.Queue[tuple[str, float]] = queue.Queue()
    deadlines = Deadlines(lambda name: expired.put((name, time.perf_counter())))
    now = time.perf_counter()
    due = {"late": now + 0.2, "early": now + 0.05, "never": now + 3600, "past": now - 1}
    for name, at in due.items():
        deadlines.add(name, at)
    seen = [expired.get(timeout=PATIENCE_S) for _ in range(3)]
    assert [name for name, _ in seen] == ["past", "early", "late"]
    assert all(at >= due[name] for name, at in seen)
    deadlines.close()
    assert expired.empty()


def test_a_closed_watch_calls_back_no_more_and_its_thread_ends() -> None:
    expired: list[str] = []
    deadlines = Deadlines(expired.append)
    deadlines.add("later", time.perf_counter() + 0.05)
    deadlines.close()
    time.sleep(0.1)
    assert expired == []
    deadline = time.monotonic() + PATIENCE_S
    while any(thread.name == "kit-deadlines" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
