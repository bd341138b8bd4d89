"""Sends the requests of a load when they are due, and writes down when each was answered.

Latency counts from the moment at which a request was due, not from the one at which it was sent:
what waits because the client or the server is behind has waited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from bench.harness.jobs import Job, due_times, job, kinds_of
from bench.harness.load import Closed, Load
from bench.harness.target import Answer, Target
from bench.records import Row


def warm_up(target: Target, load: Load) -> int:
    """Ask for every kind of picture `load.warmup` times; returns how many requests that were."""
    for one in kinds_of(load):
        for _ in range(load.warmup):
            target.ask(one)
    return len(kinds_of(load)) * load.warmup


def drive(target: Target, load: Load) -> tuple[Row, ...]:
    """Run a load; returns a row a request, in the order in which they were due."""
    queue = _Queue(load)
    num_threads = load.arrivals.concurrency
    if not isinstance(load.arrivals, Closed) and load.requests is not None:
        num_threads = min(num_threads, load.requests)
    rows: list[tuple[int, Row]] = []
    lock = Lock()
    start = time.perf_counter()

    def client() -> None:
        while (turn := queue.take()) is not None:
            index, due_s = turn
            one = job(load, index)
            if due_s is None:
                scheduled = time.perf_counter()
                if load.duration_s is not None and scheduled - start > load.duration_s:
                    return
            else:
                scheduled = start + due_s
                time.sleep(max(0.0, scheduled - time.perf_counter()))
            sent = time.perf_counter()
            answer = target.ask(one)
            row = _row(index, one, scheduled - start, sent - start, answer.done - start, answer)
            with lock:
                rows.append((index, row))

    with ThreadPoolExecutor(num_threads, thread_name_prefix="client") as pool:
        for done in [pool.submit(client) for _ in range(num_threads)]:
            done.result()
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0]))


def ask_once(target: Target, one: Job) -> Row:
    """Send a single request now; its row counts from this moment."""
    sent = time.perf_counter()
    answer = target.ask(one)
    return _row(0, one, 0.0, 0.0, answer.done - sent, answer)


@dataclass
class _Queue:
    """Hands each request out once, in order."""

    load: Load
    _lock: Lock = field(default_factory=Lock)
    _next: int = 0
    _due: Iterator[float | None] = field(init=False)

    def __post_init__(self) -> None:
        self._due = due_times(self.load)

    def take(self) -> tuple[int, float | None] | None:
        with self._lock:
            try:
                due = next(self._due)
            except StopIteration:
                return None
            self._next += 1
            return self._next - 1, due


def _row(
    index: int, one: Job, scheduled_s: float, sent_s: float, done_s: float, answer: Answer
) -> Row:
    return {
        "request": index,
        "scheduled_s": scheduled_s,
        "sent_s": sent_s,
        "done_s": done_s,
        "latency_s": done_s - scheduled_s,
        "service_s": done_s - sent_s,
        "status": answer.outcome,
        "size": one.size,
        "steps": one.steps,
        "guidance": one.guidance,
        "seed": one.seed,
        "n": one.n,
        "sha256": answer.sha256,
        "message": answer.message,
        **answer.columns,
    }
