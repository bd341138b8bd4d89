"""One queue and several groups: who runs where, what a lost group does to those booked there."""

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

from kit.errors import EngineError
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.scheduler.scheduler import Scheduler
from kit.tokenizer.layout import Layout

GEOMETRY = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=8, dtype_bytes=2, page_size=4)


class Bench:
    """A Scheduler over groups of `num_pages` each; requests are sized in pages."""

    def __init__(self, num_groups: int, num_pages: int = 8, max_num_seqs: int = 1) -> None:
        self.pools = [KVCacheManager(GEOMETRY, num_pages, 2) for _ in range(num_groups)]
        self.scheduler = Scheduler(self.pools, max_num_seqs)

    def add(self, request_id: str, num_pages: int = 1) -> None:
        layout = Layout(prefix_len=4 * num_pages - 2, num_special=1, grid=(1, 1), tail_len=1)
        self.scheduler.add_request(request_id, layout, 1)

    def start(self, group: int) -> str | None:
        scheduled = self.scheduler.schedule(group)
        return None if scheduled is None else scheduled.request_id

    def held(self) -> dict[str, tuple[int, bool]]:
        return {h.request_id: (h.group, h.is_running) for h in self.scheduler.holdings()}


def test_each_group_runs_one_request_and_the_oldest_start() -> None:
    bench = Bench(2)
    for name in "abc":
        bench.add(name)
    assert {bench.start(1), bench.start(0)} == {"a", "b"}
    assert (bench.start(1), bench.start(0)) == (None, None)
    assert set(bench.scheduler.snapshot().running) == {"a", "b"}
    bench.scheduler.finish("b")
    assert [bench.start(0), bench.start(1)].count("c") == 1


def test_pages_are_booked_ahead_where_least_is_to_do() -> None:
    bench = Bench(2, max_num_seqs=2)
    for name in "abcde":
        bench.add(name)
    assert (bench.start(0), bench.start(1)) == ("a", "b")
    assert bench.held() == {"a": (0, True), "b": (1, True), "c": (0, False), "d": (1, False)}
    assert bench.scheduler.snapshot().num_waiting == 1


def test_an_idle_group_takes_what_was_booked_behind_a_running_request() -> None:
    bench = Bench(2, max_num_seqs=2)
    for name in "abc":
        bench.add(name)
    assert (bench.start(0), bench.start(1)) == ("a", "b")
    assert bench.held()["c"] == (0, False)
    bench.scheduler.finish("b")
    assert bench.start(1) == "c"
    assert [pool.pool.num_used for pool in bench.pools] == [1, 1]


def test_those_booked_in_a_lost_group_wait_again_in_their_place() -> None:
    bench = Bench(2, max_num_seqs=2)
    for name in "abcdef":
        bench.add(name)
    assert (bench.start(0), bench.start(1)) == ("a", "b")
    bench.scheduler.close_group(0)
    assert bench.held() == {"a": (0, True), "b": (1, True), "d": (1, False)}
    bench.scheduler.requeue("a")
    assert bench.pools[0].pool.num_used == 0
    assert bench.start(0) is None, "it takes no requests"
    bench.scheduler.finish("b")
    assert bench.start(1) == "a", "the lost one is first in line"
    bench.scheduler.open_group(0)
    assert bench.start(0) == "c"
    bench.scheduler.finish("a")
    assert bench.start(1) == "d"


def test_with_all_groups_lost_everybody_waits() -> None:
    bench = Bench(2)
    for group in range(2):
        bench.scheduler.close_group(group)
    bench.add("a")
    bench.scheduler.admit()
    assert (bench.start(0), bench.start(1)) == (None, None)
    assert bench.scheduler.snapshot().num_waiting == 1
    bench.scheduler.open_group(1)
    assert bench.start(1) == "a"


def test_only_a_running_request_can_be_put_first_again() -> None:
    bench = Bench(2)
    bench.add("a")
    with pytest.raises(EngineError, match="no request is running"):
        bench.scheduler.requeue("a")


def test_two_cfg_ranks_book_one_rows_pages_and_a_single_row_is_on_both() -> None:
    kv = KVCacheManager(GEOMETRY, 8, 2, row_ranks=2)
    both, one = kv.reserve("both", 2, 10), kv.reserve("one", 1, 10)
    assert both is not None
    assert one is not None
    assert (both.page_tables, one.page_tables) == (((0, 1, 2),), ((3, 4, 5),))
    assert kv.largest_num_tokens(2) == kv.largest_num_tokens(1) == 32
    kv.check_fits(2, 32)
    kv.release(both)
    kv.release(one)
    assert kv.empty_copy().row_ranks == 2
    assert kv.pool.num_used == 0


class GroupsMachine(RuleBasedStateMachine):
    """Arrivals, turns, ends, losses and new starts, against what must hold at every moment."""

    num_steps: ClassVar[int] = 0

    @initialize(
        num_groups=st.integers(1, 3), num_pages=st.integers(2, 12), max_num_seqs=st.integers(1, 3)
    )
    def build(self, num_groups: int, num_pages: int, max_num_seqs: int) -> None:
        self.bench = Bench(num_groups, num_pages, max_num_seqs)
        self.num_pages, self.max_num_seqs = num_pages, max_num_seqs
        self.known: list[str] = []
        """Not running, the oldest first."""

        self.running: dict[int, str] = {}
        self.is_open = [True] * num_groups
        self.num_added = 0

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.num_added += 1
        name = f"r{self.num_added}"
        self.bench.add(name, data.draw(st.integers(1, self.num_pages)))
        self.known.append(name)

    @rule(data=st.data())
    def schedule(self, data: st.DataObject) -> None:
        group = data.draw(st.integers(0, len(self.is_open) - 1))
        started = self.bench.start(group)
        if group in self.running or not self.is_open[group] or not self.known:
            assert started is None
            return
        assert started is not None, "somebody waits and this group is idle"
        self.known.remove(started)
        self.running[group] = started

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.running)))
        self.bench.scheduler.finish(self.running.pop(group))

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        group = data.draw(st.integers(0, len(self.is_open) - 1))
        self.bench.scheduler.close_group(group)
        self.is_open[group] = False
        if group in self.running:
            name = self.running.pop(group)
            self.bench.scheduler.requeue(name)
            self.known.insert(0, name)
        assert self.bench.pools[group].pool.num_used == 0, "a lost group holds nothing"

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        group = data.draw(st.integers(0, len(self.is_open) - 1))
        self.bench.scheduler.open_group(group)
        self.is_open[group] = True

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.known))
        assert self.bench.scheduler.abort(name)
        self.known.remove(name)

    @invariant()
    def what_is_held_is_what_is_booked(self) -> None:
        if not hasattr(self, "bench"):
            return
        type(self).num_steps += 1
        seen, held = self.bench.scheduler.snapshot(), self.bench.scheduler.holdings()
        assert {h.group: h.request_id for h in held if h.is_running} == self.running
        assert [name for name in self.known if name in self.bench.held()] == [
            h.request_id for h in held if not h.is_running
        ], "in the order of arrival"
        assert seen.num_waiting + seen.num_admitted == len(self.known)
        for index, group in enumerate(seen.groups):
            own = [h for h in held if h.group == index]
            assert len(own) == group.num_admitted + len(group.running)
            assert len(own) <= self.max_num_seqs
            assert group.num_pages_used == sum(h.allocation.num_pages for h in own)

    def teardown(self) -> None:
        """With one group back, everybody gets a turn, and every page comes back."""
        if not hasattr(self, "bench"):
            return
        for name in self.running.values():
            self.bench.scheduler.finish(name)
        for group in range(len(self.is_open)):
            self.bench.scheduler.close_group(group)
        self.bench.scheduler.open_group(0)
        for name in self.known:
            assert self.bench.start(0) == name, "a request was overtaken"
            self.bench.scheduler.finish(name)
        assert all(pool.pool.num_used == 0 for pool in self.bench.pools)


def test_random_lives_of_requests_and_groups() -> None:
    run_state_machine_as_test(
        GroupsMachine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    assert GroupsMachine.num_steps > 1000
