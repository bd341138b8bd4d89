"""Requests that are scheduled step by step: each in its turn, whatever the others have left."""

from __future__ import annotations

from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.scheduler.scheduler import Scheduler
from kit.tokenizer.layout import Layout

LAYOUT = Layout(prefix_len=2, num_special=1, grid=(1, 1), tail_len=0)


def make_scheduler(max_num_seqs: int, *, by_steps: bool = True) -> Scheduler:
    return Scheduler((None,), max_num_seqs, by_steps=by_steps)


def drive(scheduler: Scheduler, steps: dict[str, int]) -> str:
    """Run requests of so many steps to their ends; returns whose turn each tick was."""
    left, turns = dict(steps), ""
    for request_id in steps:
        scheduler.add_request(request_id, LAYOUT, 2)
    while left:
        while scheduler.schedule() is not None:
            pass
        name = scheduler.next_step()
        assert name is not None
        turns += name
        left[name] -= 1
        if left[name] == 0:
            scheduler.finish(name)
            del left[name]
    assert scheduler.next_step() is None
    return turns


def test_two_requests_take_turns_until_the_shorter_one_is_done() -> None:
    turns = drive(make_scheduler(2), {"a": 6, "b": 12})
    assert turns == "ab" * 6 + "b" * 6


def test_a_waiting_request_joins_when_one_is_done() -> None:
    assert drive(make_scheduler(2), {"a": 2, "b": 4, "c": 3}) == "abab" + "cbcbc"


def test_one_place_is_the_order_of_whole_requests() -> None:
    assert drive(make_scheduler(1), {"a": 3, "b": 2}) == "aaabb"


def test_without_steps_nothing_is_given_while_one_runs() -> None:
    scheduler = make_scheduler(3, by_steps=False)
    scheduler.add_request("a", LAYOUT, 2)
    scheduler.add_request("b", LAYOUT, 2)
    assert scheduler.schedule() is not None
    assert scheduler.schedule() is None


def test_requests_of_one_step_do_not_starve_a_long_one() -> None:
    assert drive(make_scheduler(2), {"a": 4, **dict.fromkeys("bcde", 1)}) == "abacadae"


def test_what_runs_is_not_forgotten() -> None:
    scheduler = make_scheduler(2)
    for name in "abc":
        scheduler.add_request(name, LAYOUT, 2)
    assert [scheduler.schedule() is None for _ in range(3)] == [False, False, True]
    assert [scheduler.abort(name) for name in "abc"] == [False, False, True]
    assert scheduler.snapshot().running == ("a", "b")


def test_a_lost_group_gives_back_all_that_it_ran_in_the_order_of_arrival() -> None:
    kv = KVCacheManager(KVGeometry(2, 2, 8, 2, page_size=4), 8, 2)
    scheduler = Scheduler((kv,), 2, by_steps=True)
    for name in "abc":
        scheduler.add_request(name, LAYOUT, 2)
    for _ in range(3):
        scheduler.schedule()
    assert scheduler.next_step() == "a"
    assert scheduler.snapshot().groups[0].running == ("b", "a")
    scheduler.close_group(0)
    for name in "ba":
        scheduler.requeue(name)
    assert scheduler.snapshot().num_pages_used == 0
    scheduler.open_group(0)
    begun = [scheduler.schedule() for _ in range(2)]
    assert [scheduled and scheduled.request_id for scheduled in begun] == ["a", "b"]
