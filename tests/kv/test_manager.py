"""The KV cache manager: all rows or none, refusals with numbers, releases that must match."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
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

from kit.errors import CapacityError, InvalidRequestError, KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager

# 4 tokens a page, 2 * 2 * 2 * 8 * 2 = 128 bytes a token, 512 bytes a page.
GEOMETRY = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=8, dtype_bytes=2, page_size=4)

# About 5,000 steps. A busy machine may be slow, that is no fault of the code under test.
RANDOM = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def manager_of(num_pages: int, max_rows: int = 2) -> KVCacheManager:
    return KVCacheManager(GEOMETRY, num_pages, max_rows)


def reserved(manager: KVCacheManager, request_id: str, rows: int, tokens: int) -> KVAllocation:
    allocation = manager.reserve(request_id, rows, tokens)
    assert allocation is not None
    return allocation


def counters(manager: KVCacheManager) -> tuple[int, int]:
    return manager.pool.num_free, manager.pool.num_used


def test_an_allocation_has_one_table_per_row_in_token_order() -> None:
    allocation = reserved(manager_of(10), "r", 2, 9)
    assert allocation == KVAllocation(
        request_id="r",
        generation=1,
        page_tables=((0, 1, 2), (3, 4, 5)),
        num_tokens=9,
        page_size=4,
    )
    assert allocation.num_pages == 6


@pytest.mark.parametrize(("num_tokens", "num_pages"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2)])
def test_a_row_gets_the_pages_its_tokens_need(num_tokens: int, num_pages: int) -> None:
    allocation = reserved(manager_of(10), "r", 2, num_tokens)
    assert [len(table) for table in allocation.page_tables] == [num_pages, num_pages]


def test_room_for_one_row_books_nothing_for_a_request_of_two() -> None:
    manager = manager_of(8)
    first = reserved(manager, "first", 1, 16)
    assert manager.reserve("pair", 2, 12) is None
    assert counters(manager) == (4, 4)
    assert reserved(manager, "single", 1, 12).num_pages == 3
    assert first.page_tables == ((0, 1, 2, 3),)


def test_the_generation_grows_with_each_reservation_that_succeeds() -> None:
    manager = manager_of(4)
    first = reserved(manager, "r", 2, 8)
    assert manager.reserve("other", 1, 1) is None
    manager.release(first)
    second = reserved(manager, "r", 2, 8)
    assert (first.generation, second.generation) == (1, 2)
    assert second.page_tables == first.page_tables


def test_a_request_cannot_reserve_twice() -> None:
    manager = manager_of(8)
    reserved(manager, "r", 1, 4)
    with pytest.raises(KVCacheError, match=r"request r holds pages already \(generation 1\)"):
        manager.reserve("r", 1, 4)
    assert counters(manager) == (7, 1)


def test_release_gives_every_page_back() -> None:
    manager = manager_of(8)
    allocations = [reserved(manager, name, 2, 5) for name in ("a", "b")]
    assert counters(manager) == (0, 8)
    for allocation in allocations:
        manager.release(allocation)
    assert counters(manager) == (8, 0)
    assert manager.pool.peak_used == 8


def test_an_allocation_that_crossed_a_process_boundary_can_be_released() -> None:
    manager = manager_of(8)
    manager.release(pickle.loads(pickle.dumps(reserved(manager, "r", 2, 5))))
    assert counters(manager) == (8, 0)


def test_a_repeated_release_is_refused() -> None:
    manager = manager_of(8)
    allocation = reserved(manager, "r", 1, 4)
    manager.release(allocation)
    with pytest.raises(KVCacheError, match="request r, generation 1: it holds no pages"):
        manager.release(allocation)
    assert counters(manager) == (8, 0)


def test_a_release_of_an_unknown_request_is_refused() -> None:
    manager = manager_of(8)
    allocation = reserved(manager, "r", 1, 4)
    with pytest.raises(KVCacheError, match="request ghost, generation 1: it holds no pages"):
        manager.release(dataclasses.replace(allocation, request_id="ghost"))
    assert counters(manager) == (7, 1)


def test_a_stale_generation_does_not_free_the_live_one() -> None:
    manager = manager_of(8)
    stale = reserved(manager, "r", 1, 4)
    manager.release(stale)
    live = reserved(manager, "r", 1, 4)
    with pytest.raises(KVCacheError, match="generation 1: its live generation is 2"):
        manager.release(stale)
    assert counters(manager) == (7, 1)
    manager.release(live)


def test_an_allocation_with_other_pages_is_refused() -> None:
    manager = manager_of(8)
    mine, other = reserved(manager, "mine", 1, 4), reserved(manager, "other", 1, 4)
    forged = dataclasses.replace(mine, page_tables=other.page_tables)
    with pytest.raises(KVCacheError, match="its pages or lengths are not those reserved"):
        manager.release(forged)
    assert counters(manager) == (6, 2)


def test_what_exactly_fills_the_pool_fits() -> None:
    manager = manager_of(9)
    assert manager.largest_num_tokens(2) == 16
    assert manager.largest_num_tokens(1) == 36
    manager.check_fits(2, 16)
    assert reserved(manager, "r", 2, 16).num_pages == 8
    with pytest.raises(CapacityError):
        manager.check_fits(2, 17)


def test_a_pool_without_pages_fits_nothing() -> None:
    manager = manager_of(0)
    assert manager.largest_num_tokens(1) == 0
    with pytest.raises(CapacityError, match=r"the pool has 0 \(0 bytes\)"):
        manager.check_fits(1, 1)


def test_a_capacity_error_carries_every_number() -> None:
    asked: list[int] = []

    def largest_size(num_tokens: int) -> str:
        asked.append(num_tokens)
        return "320x192"

    with pytest.raises(CapacityError) as caught:
        manager_of(9).check_fits(2, 21, request_id="r7", largest_size=largest_size)
    error = caught.value
    assert str(error) == (
        "request r7 needs 12 KV pages (6144 bytes, 6.0 KiB), the pool has 9 (4608 bytes, 4.5 KiB); "
        "largest size that fits is 320x192; use it, or raise kv_cache_memory_bytes to 6144"
    )
    assert (error.needed_bytes, error.given_bytes, error.param) == (6144, 4608, "size")
    assert asked == [16]
    # The remedy is enough, and not more than enough.
    num_pages = error.needed_bytes // GEOMETRY.page_bytes
    manager_of(num_pages).check_fits(2, 21)
    with pytest.raises(CapacityError):
        manager_of(num_pages - 1).check_fits(2, 21)


def test_a_capacity_error_says_when_no_size_fits() -> None:
    with pytest.raises(
        CapacityError,
        match=r"; no image size fits beside the rest of the row; raise kv_cache_memory_bytes to "
        r"6144$",
    ):
        manager_of(9).check_fits(2, 21, largest_size=lambda _: None)


def test_a_capacity_error_does_without_sizes() -> None:
    with pytest.raises(
        CapacityError,
        match=r"^the request needs .*; use a smaller size or raise kv_cache_memory_bytes to 6144$",
    ):
        manager_of(9).check_fits(2, 21)


def test_the_bytes_are_those_of_the_real_model() -> None:
    geometry = KVGeometry(num_layers=32, num_kv_heads=8, head_dim=128, dtype_bytes=2, page_size=176)
    manager = KVCacheManager(geometry, 536870912 // geometry.page_bytes, 2)
    with pytest.raises(
        CapacityError, match=r"needs 50 KV pages \(1153433600 bytes, 1\.1 GiB\), the pool has 23 "
    ):
        manager.check_fits(2, 4300)


def test_sizes_are_looked_for_only_when_refused() -> None:
    def largest_size(num_tokens: int) -> str:
        raise AssertionError(f"asked for the largest size of {num_tokens} tokens")

    manager_of(9).check_fits(2, 16, largest_size=largest_size)


def test_too_many_rows_name_the_row_limit() -> None:
    manager = manager_of(9, max_rows=1)
    with pytest.raises(InvalidRequestError) as caught:
        manager.check_fits(2, 4, request_id="r7")
    assert str(caught.value) == (
        "request r7 needs 2 rows (guidance_scale above 1), diffusion_kv_max_rows_per_request is 1; "
        "set guidance_scale to at most 1 or raise diffusion_kv_max_rows_per_request to 2"
    )
    assert caught.value.param == "guidance_scale"


def test_reserve_raises_what_can_never_be_reserved() -> None:
    manager = manager_of(9, max_rows=1)
    with pytest.raises(InvalidRequestError):
        manager.reserve("r", 2, 4)
    with pytest.raises(CapacityError):
        manager.reserve("r", 1, 37)
    assert counters(manager) == (9, 0)
    assert reserved(manager, "r", 1, 4).generation == 1


class ManagerMachine(RuleBasedStateMachine):
    """Random reservations and releases, right and wrong ones, of a few requests."""

    num_steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        # The invariant below also runs once before the first step.
        ManagerMachine.num_steps -= 1

    @initialize(
        num_pages=st.integers(0, 30), page_size=st.integers(1, 7), max_rows=st.integers(1, 3)
    )
    def build(self, num_pages: int, page_size: int, max_rows: int) -> None:
        self.page_size = page_size
        geometry = dataclasses.replace(GEOMETRY, page_size=page_size)
        self.manager = KVCacheManager(geometry, num_pages, max_rows)
        self.held: dict[str, KVAllocation] = {}
        self.past: list[KVAllocation] = []
        self.last_generation = 0

    @rule(name=st.sampled_from("abcdef"), rows=st.integers(1, 4), tokens=st.integers(1, 40))
    def reserve(self, name: str, rows: int, tokens: int) -> None:
        pages_per_row = (tokens + self.page_size - 1) // self.page_size
        manager = self.manager
        if name in self.held:
            with pytest.raises(KVCacheError):
                manager.reserve(name, rows, tokens)
        elif rows > manager.max_rows_per_request:
            with pytest.raises(InvalidRequestError):
                manager.reserve(name, rows, tokens)
        elif tokens > manager.largest_num_tokens(rows):
            with pytest.raises(CapacityError):
                manager.reserve(name, rows, tokens)
        elif rows * pages_per_row > manager.pool.num_free:
            assert manager.reserve(name, rows, tokens) is None
        else:
            allocation = reserved(manager, name, rows, tokens)
            assert [len(table) for table in allocation.page_tables] == [pages_per_row] * rows
            assert (allocation.request_id, allocation.num_tokens) == (name, tokens)
            assert allocation.generation > self.last_generation
            self.last_generation = allocation.generation
            self.held[name] = allocation

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        allocation = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        self.manager.release(allocation)
        self.past.append(allocation)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def release_a_past_one(self, data: st.DataObject) -> None:
        with pytest.raises(KVCacheError):
            self.manager.release(data.draw(st.sampled_from(self.past)))

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def release_with_the_pages_of_another(self, data: st.DataObject) -> None:
        mine, other = data.draw(st.permutations(sorted(self.held)))[:2]
        with pytest.raises(KVCacheError):
            self.manager.release(
                dataclasses.replace(self.held[mine], page_tables=self.held[other].page_tables)
            )

    @invariant()
    def each_page_is_free_or_has_one_owner(self) -> None:
        ManagerMachine.num_steps += 1
        owned = [
            page
            for allocation in self.held.values()
            for table in allocation.page_tables
            for page in table
        ]
        assert len(set(owned)) == len(owned), "a page has two owners"
        assert counters(self.manager) == (self.manager.pool.num_pages - len(owned), len(owned))

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for allocation in self.held.values():
            self.manager.release(allocation)
        num_pages = self.manager.pool.num_pages
        assert counters(self.manager) == (num_pages, 0)
        if num_pages:
            everything = reserved(self.manager, "everything", 1, num_pages * self.page_size)
            assert sorted(everything.page_tables[0]) == list(range(num_pages)), "a page was lost"


def test_random_operations_on_the_manager() -> None:
    run_state_machine_as_test(ManagerMachine, settings=RANDOM)
    assert ManagerMachine.num_steps >= 2000


def test_the_control_plane_imports_no_torch() -> None:
    code = "import sys, kit.kv.manager, kit.scheduler.scheduler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
