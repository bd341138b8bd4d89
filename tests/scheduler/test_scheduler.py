"""The Scheduler: arrival order, pages booked ahead, refusals on arrival, abort in every state."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kit.errors import CapacityError, EngineError, InvalidRequestError
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.scheduler.scheduler import GroupSnapshot, Scheduler, SchedulerSnapshot
from kit.tokenizer.layout import Layout

GEOMETRY = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=8, dtype_bytes=2, page_size=4)

# About 5,000 steps. A busy machine may be slow, that is no fault of the code under test.
RANDOM = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def layout_of(num_tokens: int) -> Layout:
    """Return a layout with `num_tokens` kept tokens; its tail must not be counted."""
    layout = Layout(prefix_len=num_tokens - 2, num_special=1, grid=(1, 1), tail_len=50)
    assert layout.kv_len == num_tokens
    return layout


class Bench:
    """A Scheduler over a pool of `num_pages`; requests are sized in pages of one row."""

    def __init__(self, num_pages: int | None, max_num_seqs: int, max_rows: int = 2) -> None:
        self.kv = None if num_pages is None else KVCacheManager(GEOMETRY, num_pages, max_rows)
        self.scheduler = Scheduler((self.kv,), max_num_seqs)

    def add(self, request_id: str, pages_per_row: int = 1, num_rows: int = 1) -> None:
        self.scheduler.add_request(request_id, layout_of(4 * pages_per_row), num_rows)

    def start(self) -> str | None:
        scheduled = self.scheduler.schedule()
        return None if scheduled is None else scheduled.request_id

    @property
    def num_holding(self) -> int:
        return len(self.scheduler.holdings())

    @property
    def seen(self) -> SchedulerSnapshot:
        return self.scheduler.snapshot()


def test_an_idle_scheduler_has_nothing_to_run() -> None:
    bench = Bench(8, max_num_seqs=1)
    assert bench.start() is None
    group = GroupSnapshot(
        is_open=True,
        num_admitted=0,
        running=(),
        num_pages=8,
        num_pages_used=0,
        num_pages_free=8,
        num_pages_cached=0,
        peak_pages_used=0,
        num_pages_evicted=0,
    )
    assert bench.seen == SchedulerSnapshot(num_waiting=0, groups=(group,))


def test_a_request_runs_with_the_pages_of_all_its_rows() -> None:
    bench = Bench(8, max_num_seqs=1)
    bench.scheduler.add_request("r", layout_of(10), num_rows=2)
    scheduled = bench.scheduler.schedule()
    assert scheduled is not None
    assert scheduled.request_id == "r"
    assert scheduled.allocation == KVAllocation(
        request_id="r", generation=1, page_tables=((0, 1, 2), (3, 4, 5)), num_tokens=10, page_size=4
    )
    bench.scheduler.finish("r")
    assert (bench.seen.num_pages_used, bench.seen.peak_pages_used) == (0, 6)


def test_requests_run_one_at_a_time_in_the_order_of_arrival() -> None:
    bench = Bench(8, max_num_seqs=3)
    for name in "abc":
        bench.add(name)
    for name in "abc":
        assert bench.start() == name
        assert bench.start() is None
        bench.scheduler.finish(name)
    assert bench.start() is None


def test_max_num_seqs_limits_how_many_hold_pages() -> None:
    bench = Bench(100, max_num_seqs=2)
    for name in "abcd":
        bench.add(name)
    assert bench.start() == "a"
    assert (bench.seen.num_waiting, bench.seen.num_admitted, bench.num_holding) == (2, 1, 2)
    assert bench.seen.num_pages_used == 2


def test_with_a_max_num_seqs_of_1_nothing_is_booked_ahead() -> None:
    bench = Bench(8, max_num_seqs=1)
    bench.add("a")
    bench.add("b")
    assert bench.start() == "a"
    assert bench.start() is None
    assert (bench.seen.num_waiting, bench.num_holding, bench.seen.num_pages_used) == (1, 1, 1)


def test_pages_of_the_next_request_are_booked_while_one_runs() -> None:
    bench = Bench(8, max_num_seqs=2)
    bench.add("a", 4)
    assert bench.start() == "a"
    bench.add("b", 4)
    assert bench.start() is None
    assert (bench.seen.running, bench.num_holding, bench.seen.num_pages_free) == (("a",), 2, 0)
    bench.scheduler.finish("a")
    assert bench.start() == "b"


def test_a_small_request_does_not_pass_a_big_one_that_waits_for_pages() -> None:
    bench = Bench(8, max_num_seqs=3)
    bench.add("running", 4)
    bench.add("big", 6)
    bench.add("small", 1)
    assert bench.start() == "running"
    assert (bench.seen.num_waiting, bench.seen.num_pages_free) == (2, 4)
    bench.scheduler.finish("running")
    assert bench.start() == "big"
    assert bench.seen.num_pages_used == 7
    bench.scheduler.finish("big")
    assert bench.start() == "small"


def test_dense_requests_hold_no_pages_and_are_never_too_large() -> None:
    bench = Bench(None, max_num_seqs=2)
    bench.add("a", 10**6, num_rows=5)
    bench.add("b")
    scheduled = bench.scheduler.schedule()
    assert scheduled is not None
    assert (scheduled.request_id, scheduled.allocation) == ("a", None)
    assert bench.start() is None
    group = GroupSnapshot(
        is_open=True,
        num_admitted=1,
        running=("a",),
        num_pages=0,
        num_pages_used=0,
        num_pages_free=0,
        num_pages_cached=0,
        peak_pages_used=0,
        num_pages_evicted=0,
    )
    assert bench.seen == SchedulerSnapshot(num_waiting=0, groups=(group,))
    bench.scheduler.finish("a")
    assert bench.start() == "b"


def test_what_never_fits_is_refused_on_arrival_with_the_size_that_would() -> None:
    bench = Bench(8, max_num_seqs=1)
    with pytest.raises(CapacityError) as caught:
        bench.scheduler.add_request(
            "r7", layout_of(20), 2, largest_size=lambda num_tokens: f"{num_tokens}x1"
        )
    assert str(caught.value).startswith("request r7 needs 10 KV pages (5120 bytes")
    assert "largest size that fits is 16x1" in str(caught.value)
    assert bench.seen.num_waiting == 0
    bench.add("r7")
    assert bench.start() == "r7"


def test_too_many_rows_are_refused_on_arrival() -> None:
    bench = Bench(8, max_num_seqs=1, max_rows=1)
    with pytest.raises(InvalidRequestError, match="diffusion_kv_max_rows_per_request is 1") as e:
        bench.add("r", num_rows=2)
    assert e.value.param == "guidance_scale"
    assert (bench.seen.num_waiting, bench.seen.num_pages_used) == (0, 0)


@pytest.mark.parametrize("name", ["running", "admitted", "waiting"])
def test_an_id_in_use_is_refused(name: str) -> None:
    bench = Bench(8, max_num_seqs=2)
    for used in ("running", "admitted", "waiting"):
        bench.add(used)
    bench.start()
    before = bench.seen
    with pytest.raises(InvalidRequestError, match=f"request_id: got '{name}'") as caught:
        bench.add(name)
    assert caught.value.param == "request_id"
    assert bench.seen == before


def test_an_id_is_free_again_when_its_request_is_gone() -> None:
    bench = Bench(8, max_num_seqs=1)
    bench.add("r")
    bench.start()
    bench.scheduler.finish("r")
    bench.add("r")
    assert bench.start() == "r"


def test_abort_of_a_waiting_request_lets_those_behind_it_through() -> None:
    bench = Bench(8, max_num_seqs=3)
    bench.add("running", 4)
    bench.add("big", 6)
    bench.add("small", 1)
    bench.start()
    assert bench.scheduler.abort("big")
    assert bench.start() is None
    assert (bench.seen.num_waiting, bench.seen.num_admitted, bench.seen.num_pages_used) == (0, 1, 5)


def test_abort_of_an_admitted_request_frees_its_pages_at_once() -> None:
    bench = Bench(8, max_num_seqs=2)
    bench.add("running", 4)
    bench.add("admitted", 4)
    bench.start()
    assert bench.seen.num_pages_free == 0
    assert bench.scheduler.abort("admitted")
    assert (bench.seen.num_pages_free, bench.num_holding) == (4, 1)


def test_abort_of_the_running_request_leaves_its_pages_until_finish() -> None:
    bench = Bench(8, max_num_seqs=1)
    bench.add("r", 4)
    bench.add("next", 8)
    bench.start()
    for _ in range(2):
        assert not bench.scheduler.abort("r")
        assert (bench.seen.running, bench.seen.num_pages_used) == (("r",), 4)
        assert bench.start() is None
    bench.scheduler.finish("r")
    assert bench.seen.num_pages_used == 0
    assert bench.start() == "next"


def test_abort_of_a_request_that_is_gone_leaves_everything_alone() -> None:
    bench = Bench(8, max_num_seqs=1)
    bench.add("r")
    bench.start()
    before = bench.seen
    assert bench.scheduler.abort("gone")
    assert bench.seen == before


@pytest.mark.parametrize("name", ["admitted", "waiting", "unknown"])
def test_only_the_running_request_can_finish(name: str) -> None:
    bench = Bench(8, max_num_seqs=2)
    with pytest.raises(EngineError, match=f"finish of request {name}: no request is running"):
        bench.scheduler.finish(name)
    for used in ("running", "admitted", "waiting"):
        bench.add(used)
    bench.start()
    before = bench.seen
    with pytest.raises(EngineError, match=f"finish of request {name}: running is running"):
        bench.scheduler.finish(name)
    assert bench.seen == before
    bench.scheduler.finish("running")
    with pytest.raises(EngineError, match="no request is running"):
        bench.scheduler.finish("running")


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, turns, ends and aborts against a model that is one list in arrival order.

    The first entries of the list are admitted or running; `allocations` has the pages of those.
    """

    num_steps: ClassVar[int] = 0
    paged: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        # The invariant below also runs once before the first step.
        type(self).num_steps -= 1

    @initialize(num_pages=st.integers(1, 24), max_num_seqs=st.integers(1, 4))
    def build(self, num_pages: int, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.bench = Bench(num_pages if self.paged else None, max_num_seqs)
        self.num_pages = num_pages if self.paged else 0
        self.queue: list[str] = []
        self.needs: dict[str, int] = {}
        self.running: str | None = None
        self.num_admitted = 0
        """Of the queue's head, the running one not counted."""

        self.num_added = 0

    @property
    def holding(self) -> list[str]:
        admitted = self.queue[: self.num_admitted]
        return [self.running, *admitted] if self.running is not None else admitted

    @property
    def num_used(self) -> int:
        return sum(self.needs[name] for name in self.holding) if self.paged else 0

    @rule(pages_per_row=st.integers(1, 8), num_rows=st.integers(1, 3))
    def add(self, pages_per_row: int, num_rows: int) -> None:
        self.num_added += 1
        name = f"r{self.num_added}"
        if self.paged and num_rows > 2:
            self.refused(InvalidRequestError, name, pages_per_row, num_rows)
        elif self.paged and pages_per_row * num_rows > self.num_pages:
            self.refused(CapacityError, name, pages_per_row, num_rows)
        else:
            self.bench.add(name, pages_per_row, num_rows)
            self.queue.append(name)
            self.needs[name] = pages_per_row * num_rows

    def refused(self, error: type[Exception], name: str, pages_per_row: int, rows: int) -> None:
        with pytest.raises(error):
            self.bench.add(name, pages_per_row, rows)

    @rule()
    def schedule(self) -> None:
        scheduled = self.bench.scheduler.schedule()
        while self.num_admitted < len(self.queue) and len(self.holding) < self.max_num_seqs:
            need = self.needs[self.queue[self.num_admitted]]
            if self.paged and need > self.num_pages - self.num_used:
                break
            self.num_admitted += 1
        if self.running is not None or not self.queue:
            assert scheduled is None, "two run at once, or nobody does"
            return
        assert scheduled is not None, "somebody waits and nobody runs"
        self.running = self.queue.pop(0)
        self.num_admitted -= 1
        assert scheduled.request_id == self.running, "a request was overtaken"
        if not self.paged:
            assert scheduled.allocation is None
            return
        assert scheduled.allocation is not None
        assert scheduled.allocation.request_id == self.running
        assert scheduled.allocation.num_pages == self.needs[self.running]

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish(self) -> None:
        assert self.running is not None
        self.bench.scheduler.finish(self.running)
        self.running = None

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def finish_one_that_does_not_run(self, data: st.DataObject) -> None:
        with pytest.raises(EngineError):
            self.bench.scheduler.finish(data.draw(st.sampled_from(self.queue)))

    @precondition(lambda self: self.queue or self.running is not None)
    @rule(data=st.data())
    def add_an_id_in_use(self, data: st.DataObject) -> None:
        names = self.queue if self.running is None else [self.running, *self.queue]
        self.refused(InvalidRequestError, data.draw(st.sampled_from(names)), 1, 1)

    @precondition(lambda self: self.num_admitted)
    @rule(data=st.data())
    def abort_admitted(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, self.num_admitted - 1))
        assert self.bench.scheduler.abort(self.queue.pop(at))
        self.num_admitted -= 1

    @precondition(lambda self: len(self.queue) > self.num_admitted)
    @rule(data=st.data())
    def abort_waiting(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(self.num_admitted, len(self.queue) - 1))
        assert self.bench.scheduler.abort(self.queue.pop(at))

    @precondition(lambda self: self.running is not None)
    @rule()
    def abort_running(self) -> None:
        assert self.running is not None
        assert not self.bench.scheduler.abort(self.running)

    @rule()
    def abort_unknown(self) -> None:
        assert self.bench.scheduler.abort("never added")

    @invariant()
    def the_snapshot_is_that_of_the_model(self) -> None:
        type(self).num_steps += 1
        seen = self.bench.seen
        assert seen.running == (() if self.running is None else (self.running,))
        assert (seen.num_admitted, seen.num_waiting) == (
            self.num_admitted,
            len(self.queue) - self.num_admitted,
        )
        assert self.bench.num_holding == (len(self.holding) if self.paged else 0)
        assert len(self.holding) <= self.max_num_seqs
        assert (seen.num_pages_used, seen.num_pages_free) == (
            self.num_used,
            self.num_pages - self.num_used,
        )
        assert seen.num_pages == self.num_pages

    def teardown(self) -> None:
        """Let everything run: all get their turn, in order, and every page comes back."""
        if not hasattr(self, "bench"):
            return
        if self.running is not None:
            self.bench.scheduler.finish(self.running)
        for name in self.queue:
            assert self.bench.start() == name
            self.bench.scheduler.finish(name)
        assert self.bench.start() is None
        assert self.bench.seen.num_pages_used == 0
        if self.bench.kv is not None:
            everything = self.bench.kv.reserve("everything", 1, 4 * self.num_pages)
            assert everything is not None
            assert sorted(everything.page_tables[0]) == list(range(self.num_pages))


class PagedSchedulerMachine(SchedulerMachine):
    num_steps = 0
    paged = True


class DenseSchedulerMachine(SchedulerMachine):
    num_steps = 0
    paged = False


@pytest.mark.parametrize("machine", [PagedSchedulerMachine, DenseSchedulerMachine])
def test_random_operations_on_the_scheduler(machine: type[SchedulerMachine]) -> None:
    run_state_machine_as_test(machine, settings=RANDOM)
    assert machine.num_steps >= 2000
