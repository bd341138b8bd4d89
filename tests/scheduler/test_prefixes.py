"""Prefixes in the Scheduler: who leaves one behind, who finds it, and where."""

from __future__ import annotations

import random

import pytest

from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.kv.prefix import PrefixKeys
from kit.scheduler.scheduler import Scheduler
from kit.tokenizer.layout import Layout

GEOMETRY = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=8, dtype_bytes=2, page_size=4)
# Two whole pages of prefix, then a page of target.
LAYOUT = Layout(prefix_len=8, num_special=1, grid=(1, 2), tail_len=1)


class Bench:
    """A Scheduler over groups of ten pages; every request has the same prefix unless named."""

    def __init__(self, num_groups: int = 1, max_num_seqs: int = 1) -> None:
        self.pools = [KVCacheManager(GEOMETRY, 10, 2) for _ in range(num_groups)]
        self.scheduler = Scheduler(self.pools, max_num_seqs)

    def add(self, request_id: str, prefix: str = "p") -> None:
        chain = tuple(f"{prefix} {page}".encode() for page in range(2))
        self.scheduler.add_request(request_id, LAYOUT, 1, prefix=PrefixKeys((chain,)))

    def start(self, request_id: str, group: int = 0) -> KVAllocation:
        scheduled = self.scheduler.schedule(group)
        assert scheduled is not None
        assert scheduled.request_id == request_id
        assert scheduled.allocation is not None
        return scheduled.allocation

    def run(self, request_id: str, group: int = 0) -> int:
        """Let a request end well; return how many tokens it found."""
        self.add(request_id)
        found = self.start(request_id, group).num_cached_tokens
        self.scheduler.finish(request_id, is_good=True)
        return found


def test_what_ended_well_is_found_by_the_next() -> None:
    bench = Bench()
    assert [bench.run(name) for name in "abc"] == [0, 8, 8]
    bench.add("other", prefix="q")
    assert bench.start("other").num_cached_tokens == 0
    seen = bench.scheduler.snapshot()
    assert (seen.num_pages_used, seen.num_pages_free, seen.num_pages_cached) == (3, 7, 2)


@pytest.mark.parametrize("end", ["failed", "requeued", "cancelled while it waits"])
def test_who_did_not_end_well_leaves_nothing(end: str) -> None:
    bench = Bench(max_num_seqs=2)
    bench.add("first")
    if end == "cancelled while it waits":
        bench.add("blocks", prefix="q")
        bench.start("first")
        assert bench.scheduler.snapshot().num_admitted == 1
        assert bench.scheduler.abort("blocks")
        assert bench.scheduler.snapshot().num_pages_cached == 0
        return
    bench.start("first")
    if end == "failed":
        bench.scheduler.finish("first")
    else:
        bench.scheduler.requeue("first")
        assert bench.start("first").num_cached_tokens == 0
        bench.scheduler.finish("first")
    assert bench.scheduler.snapshot().num_pages_cached == 0
    assert bench.run("next") == 0


def test_a_reader_that_fails_leaves_what_it_found() -> None:
    bench = Bench()
    bench.run("first")
    bench.add("fails")
    bench.start("fails")
    bench.scheduler.finish("fails")
    assert bench.run("next") == 8


def test_who_was_booked_ahead_looks_again_when_its_turn_comes() -> None:
    bench = Bench(max_num_seqs=2)
    bench.add("first")
    bench.add("ahead")
    bench.start("first")
    [_, ahead] = bench.scheduler.holdings()
    assert (ahead.request_id, ahead.allocation.num_cached_tokens) == ("ahead", 0)
    bench.scheduler.finish("first", is_good=True)
    allocation = bench.start("ahead")
    assert allocation.num_cached_tokens == 8
    assert allocation.generation > ahead.allocation.generation
    [holding] = bench.scheduler.holdings()
    assert holding.allocation == allocation
    seen = bench.scheduler.snapshot()
    assert (seen.num_pages_used, seen.num_pages_cached) == (3, 0)
    bench.scheduler.finish("ahead", is_good=True)
    assert bench.scheduler.snapshot().num_pages_free == 10


def test_pages_given_back_by_the_second_look_let_others_in() -> None:
    """The third needs what the second one no longer does."""
    bench = Bench(max_num_seqs=3)
    for name in "abcd":
        bench.add(name)
    bench.start("a")
    assert bench.scheduler.snapshot().num_pages_free == 1, "three hold three pages each"
    bench.scheduler.finish("a", is_good=True)
    bench.start("b")
    assert bench.scheduler.snapshot().num_waiting == 0
    held = {h.request_id: h.allocation for h in bench.scheduler.holdings()}
    assert held["d"].num_cached_tokens == 8
    assert held["d"].page_tables[0][:2] == held["b"].page_tables[0][:2]


def test_every_group_has_prefixes_of_its_own() -> None:
    bench = Bench(num_groups=2)
    assert bench.run("a", group=0) == 0
    assert bench.run("b", group=1) == 0
    assert bench.run("c", group=1) == 8
    assert [pool.pool.num_cached for pool in bench.pools] == [2, 2]
    assert bench.scheduler.snapshot().num_pages_cached == 4


def test_a_closed_group_forgets_and_the_other_one_does_not() -> None:
    bench = Bench(num_groups=2)
    bench.run("a", group=0)
    bench.run("b", group=1)
    bench.scheduler.close_group(0)
    assert [pool.pool.num_cached for pool in bench.pools] == [0, 2]
    bench.scheduler.open_group(0)
    assert bench.run("c", group=0) == 0
    assert bench.run("d", group=1) == 8


@pytest.mark.parametrize("num_found", [0, 8])
def test_what_ran_in_a_group_when_it_was_closed_leaves_nothing_there(num_found: int) -> None:
    bench = Bench()
    if num_found:
        bench.run("first")
    bench.add("runs")
    assert bench.start("runs").num_cached_tokens == num_found
    bench.scheduler.close_group(0)
    bench.scheduler.finish("runs", is_good=True)
    bench.scheduler.open_group(0)
    assert bench.run("next") == 0
    assert bench.pools[0].pool.num_free == 10


def live(seed: int, num_steps: int) -> int:
    """Random lives of requests and groups; return how many tokens were found in all."""
    draw, bench, num_found = random.Random(seed), Bench(num_groups=2, max_num_seqs=2), 0
    running: dict[int, str] = {}
    for step in range(num_steps):
        group, kind = draw.randrange(2), draw.random()
        if kind < 0.35:
            bench.add(f"r{step}", prefix=draw.choice("pqr"))
        elif kind < 0.65:
            scheduled = bench.scheduler.schedule(group)
            if scheduled is not None and scheduled.allocation is not None:
                running[group] = scheduled.request_id
                num_found += scheduled.allocation.num_cached_tokens
        elif kind < 0.9:
            if group in running:
                bench.scheduler.finish(running.pop(group), is_good=draw.random() < 0.7)
        elif kind < 0.91:
            bench.scheduler.close_group(group)
            if group in running:
                bench.scheduler.requeue(running.pop(group))
            assert bench.pools[group].pool.num_cached == 0
            assert bench.pools[group].pool.num_used == 0, "a lost group holds nothing"
        else:
            bench.scheduler.open_group(group)
        held = bench.scheduler.holdings()
        for index, kv in enumerate(bench.pools):
            own = [h.allocation for h in held if h.group == index]
            pages = {page for a in own for table in a.page_tables for page in table}
            assert kv.pool.num_used == len(pages) == 10 - kv.pool.num_free
            targets = [table[2] for a in own for table in a.page_tables]
            assert len(set(targets)) == len(targets), "a target page has two owners"
    return num_found


def test_random_lives_lose_no_page() -> None:
    assert sum(live(seed, 400) for seed in range(10)) > 1000
