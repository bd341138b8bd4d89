"""The page pool: order, exact limits, and what it refuses to take back."""

from __future__ import annotations

import time
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

from kit.errors import KVCacheError
from kit.kv.pool import PagePool

# About 5,000 steps. A busy machine may be slow, that is no fault of the code under test.
RANDOM = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def counters(pool: PagePool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_used, pool.peak_used


def test_a_new_pool_hands_out_ids_in_order() -> None:
    pool = PagePool(5)
    assert pool.allocate(2) == (0, 1)
    assert pool.allocate(3) == (2, 3, 4)
    assert counters(pool) == (0, 5, 5)


def test_pages_freed_last_go_out_first_in_the_order_of_their_allocation() -> None:
    pool = PagePool(10)
    first, second = pool.allocate(3), pool.allocate(2)
    assert first is not None
    assert second is not None
    pool.free(first)
    pool.free(second)
    assert pool.allocate(5) == (*second, *first)


def test_the_same_demand_again_gets_the_same_pages() -> None:
    pool = PagePool(10)
    pages = pool.allocate(4)
    assert pages is not None
    pool.free(pages)
    assert pool.allocate(4) == pages


def test_one_page_too_many_is_none_and_changes_nothing() -> None:
    pool = PagePool(4)
    assert pool.allocate(1) == (0,)
    assert pool.allocate(4) is None
    assert counters(pool) == (3, 1, 1)
    assert pool.allocate(3) == (1, 2, 3)


def test_no_pages_asked_for_is_no_pages_given() -> None:
    pool = PagePool(4)
    assert pool.allocate(0) == ()
    pool.free(())
    assert counters(pool) == (4, 0, 0)


def test_the_peak_stays_when_pages_come_back() -> None:
    pool = PagePool(4)
    pool.free(pool.allocate(3) or ())
    pool.allocate(1)
    assert counters(pool) == (3, 1, 3)


def test_a_fragmented_pool_serves_whatever_fits_by_count() -> None:
    pool = PagePool(100)
    pages = pool.allocate(100)
    assert pages is not None
    pool.free(pages[::2])
    assert pool.allocate(51) is None
    scattered = pool.allocate(50)
    assert scattered is not None
    assert sorted(scattered) == list(pages[::2])


@pytest.mark.parametrize("num_pages", [-1, -100])
def test_negative_counts_are_refused(num_pages: int) -> None:
    with pytest.raises(KVCacheError, match=f"{num_pages} pages"):
        PagePool(num_pages)
    pool = PagePool(4)
    with pytest.raises(KVCacheError, match=f"{num_pages} pages"):
        pool.allocate(num_pages)
    assert counters(pool) == (4, 0, 0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((1, 5), "page 5 was returned while it is free"),
        ((1, 8), "page 8 was returned to a pool of 8 pages"),
        ((1, -1), "page -1 was returned to a pool of 8 pages"),
        ((0, 1, 0), "page 0 was returned twice in one call"),
    ],
)
def test_a_wrong_return_is_refused_as_a_whole(returned: tuple[int, ...], message: str) -> None:
    pool = PagePool(8)
    pages = pool.allocate(4)
    assert pages == (0, 1, 2, 3)
    with pytest.raises(KVCacheError, match=message):
        pool.free(returned)
    assert counters(pool) == (4, 4, 4)
    pool.free(pages)
    with pytest.raises(KVCacheError, match="page 0 was returned while it is free"):
        pool.free(pages)
    assert sorted(pool.allocate(8) or ()) == list(range(8))


def test_a_large_pool_is_built_at_once() -> None:
    best_s = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        PagePool(100_000)
        best_s = min(best_s, time.perf_counter() - started)
    assert best_s < 0.1


class PoolMachine(RuleBasedStateMachine):
    """Random takes and returns, right and wrong ones, against a model that is a set of ids."""

    num_steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        # The invariant below also runs once before the first step.
        PoolMachine.num_steps -= 1

    @initialize(num_pages=st.integers(0, 40))
    def build(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages)
        self.used: set[int] = set()
        self.peak = 0

    @rule(count=st.integers(0, 45))
    def allocate(self, count: int) -> None:
        pages = self.pool.allocate(count)
        if count > self.pool.num_pages - len(self.used):
            assert pages is None
            return
        assert pages is not None
        assert len(set(pages)) == len(pages) == count
        assert self.used.isdisjoint(pages), "a page has two owners"
        assert all(0 <= page < self.pool.num_pages for page in pages)
        self.used.update(pages)
        self.peak = max(self.peak, len(self.used))

    @rule(data=st.data())
    def free_some(self, data: st.DataObject) -> None:
        """Parts of several allocations at once, in any order: the pool must not care."""
        count = data.draw(st.integers(0, len(self.used)))
        pages = data.draw(st.permutations(sorted(self.used)))[:count]
        self.pool.free(iter(pages))
        self.used.difference_update(pages)

    @rule(pages=st.lists(st.integers(-2, 42), max_size=4))
    def free_anything(self, pages: list[int]) -> None:
        if len(set(pages)) == len(pages) and self.used.issuperset(pages):
            self.pool.free(pages)
            self.used.difference_update(pages)
            return
        with pytest.raises(KVCacheError):
            self.pool.free(pages)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free_one_twice_in_a_call(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.used)))
        with pytest.raises(KVCacheError):
            self.pool.free([page, page])

    @invariant()
    def counters_are_those_of_the_model(self) -> None:
        PoolMachine.num_steps += 1
        num_free = self.pool.num_pages - len(self.used)
        assert counters(self.pool) == (num_free, len(self.used), self.peak)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.free(self.used)
            pages = self.pool.allocate(self.pool.num_pages)
            assert sorted(pages or ()) == list(range(self.pool.num_pages)), "a page was lost"


def test_random_operations_on_the_pool() -> None:
    run_state_machine_as_test(PoolMachine, settings=RANDOM)
    assert PoolMachine.num_steps >= 2000
