"""Shared pages: whoever reads one finds what a computation of its own would have written."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kit.attention.ascend.limits import PAGE_SIZE as NPU_PAGE
from kit.attention.ascend.limits import check_call
from kit.errors import CapacityError, KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.kv.prefix import PrefixKeys

P = 4


def manager_of(num_pages: int, page_size: int = P, row_ranks: int = 1) -> KVCacheManager:
    geometry = KVGeometry(2, 2, 8, 2, page_size=page_size)
    return KVCacheManager(geometry, num_pages, 2, row_ranks=row_ranks)


def keys_of(*prefixes: str, page_size: int = P, shares_rows: bool = True) -> PrefixKeys:
    """A key is what it stands for: the letters of a prefix up to the end of a page."""

    def key(row: int, end: int) -> bytes:
        return f"{'' if shares_rows else row}:{prefixes[row][:end]}".encode()

    num_shared = 0
    if shares_rows and len(prefixes) == 2:
        pairs = zip(*prefixes, strict=True)
        num_shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(prefixes[0]))
    whole = range(page_size, len(prefixes[0]) + 1, page_size)
    return PrefixKeys(
        tuple(tuple(key(row, end) for end in whole) for row in range(len(prefixes))), num_shared
    )


def reserved(
    manager: KVCacheManager, name: str, *prefixes: str, target: int = 1, **changes: bool
) -> KVAllocation:
    keys = keys_of(*prefixes, page_size=manager.geometry.page_size, **changes)
    allocation = manager.reserve(name, len(prefixes), len(prefixes[0]) + target, keys)
    assert allocation is not None
    return allocation


def publish(manager: KVCacheManager, name: str, *prefixes: str, target: int = 1) -> KVAllocation:
    allocation = reserved(manager, name, *prefixes, target=target)
    manager.release(allocation, publish=True)
    return allocation


def counters(manager: KVCacheManager) -> tuple[int, int, int]:
    return manager.pool.num_used, manager.pool.num_free, manager.pool.num_cached


def test_rows_share_the_whole_pages_of_what_they_have_in_common() -> None:
    manager = manager_of(20)
    allocation = reserved(manager, "r", "aaaabbbbccX", "aaaabbbbccY")
    assert allocation.page_tables == ((0, 1, 2), (0, 1, 3))
    assert (allocation.num_shared_tokens, allocation.num_cached_tokens) == (10, 0)
    assert allocation.num_pages == 4
    assert counters(manager) == (4, 16, 0)
    manager.release(allocation)
    assert counters(manager) == (0, 20, 0)


def test_a_later_request_finds_what_was_published() -> None:
    manager = manager_of(20)
    first = publish(manager, "first", "aaaabbbbccX", "aaaabbbbccY")
    assert counters(manager) == (0, 20, 2)
    second = reserved(manager, "second", "aaaabbbbccccZ", "aaaabbbbccccW")
    assert second.num_cached_tokens == 8
    assert [table[:2] for table in second.page_tables] == [first.page_tables[0][:2]] * 2
    assert second.num_shared_tokens == 12, "the third page is shared and fresh"
    assert second.page_tables[0][2] == second.page_tables[1][2]
    assert second.page_tables[0][3] != second.page_tables[1][3]
    assert counters(manager) == (5, 15, 0)


def test_what_was_not_published_is_not_found() -> None:
    manager = manager_of(20)
    manager.release(reserved(manager, "failed", "aaaabbbb"))
    assert counters(manager) == (0, 20, 0)
    assert reserved(manager, "next", "aaaabbbb").num_cached_tokens == 0


def test_a_request_without_keys_finds_and_leaves_nothing() -> None:
    manager = manager_of(20)
    publish(manager, "first", "aaaabbbb")
    plain = manager.reserve("plain", 1, 9)
    assert plain is not None
    assert plain.num_cached_tokens == 0
    manager.release(plain, publish=True)
    assert counters(manager) == (0, 20, 2)


def test_two_that_run_at_once_read_the_same_pages() -> None:
    manager = manager_of(20)
    publish(manager, "first", "aaaabbbb")
    one, two = (reserved(manager, name, "aaaabbbb") for name in ("one", "two"))
    assert one.page_tables[0][:2] == two.page_tables[0][:2]
    assert counters(manager) == (4, 16, 0)
    manager.release(one)
    assert counters(manager) == (3, 17, 0), "the other one still reads them"
    manager.release(two)
    assert counters(manager) == (0, 20, 2)
    with pytest.raises(KVCacheError):
        manager.release(two)


def test_the_hit_is_that_of_the_row_with_the_fewest_pages_and_the_rest_is_fresh() -> None:
    manager = manager_of(20)
    found = publish(manager, "row", "aaaabbbbcccc")
    pair = reserved(manager, "pair", "aaaabbbbcccc", "aaaaXXXXXXXX")
    assert pair.num_cached_tokens == 4
    first, second = pair.page_tables
    assert first[0] == second[0] == found.page_tables[0][0]
    assert set(first[1:]).isdisjoint(found.page_tables[0][:3]), "it will write these"
    manager.release(pair, publish=True)
    # Its own copies of two pages had known keys, so they are blank again; the second row's stay.
    assert counters(manager) == (0, 20, 5)
    assert reserved(manager, "again", "aaaabbbbcccc", "aaaaXXXXXXXX").num_cached_tokens == 12


def test_rows_may_have_more_in_the_pool_than_they_have_in_common() -> None:
    manager = manager_of(20)
    publish(manager, "first", "aaaabbbbcccc", "aaaaXXXXXXXX")
    again = reserved(manager, "again", "aaaabbbbcccc", "aaaaXXXXXXXX")
    assert (again.num_cached_tokens, again.num_shared_tokens) == (12, 4)
    assert again.num_pages == 7
    first, second = again.page_tables
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, False, False]


def test_rows_that_do_not_share_have_pages_of_their_own() -> None:
    manager = manager_of(20)
    apart = reserved(manager, "r", "aaaabbbb", "aaaabbbb", shares_rows=False)
    assert (apart.num_shared_tokens, apart.num_pages) == (0, 6)
    manager.release(apart, publish=True)
    again = reserved(manager, "again", "aaaabbbb", "aaaabbbb", shares_rows=False)
    assert (again.num_cached_tokens, again.num_pages) == (8, 6)


def test_ranks_of_cfg_have_one_table() -> None:
    manager = manager_of(20, row_ranks=2)
    keys = keys_of("aaaabbbb")
    first = manager.reserve("first", 2, 9, keys)
    assert first is not None
    manager.release(first, publish=True)
    second = manager.reserve("second", 2, 9, keys)
    assert second is not None
    assert second.num_cached_tokens == 8
    assert second.page_tables[0][:2] == first.page_tables[0][:2]


def test_the_least_recently_used_prefix_goes_first_and_its_deepest_page_before_the_others() -> None:
    manager = manager_of(10)
    publish(manager, "old", "aaaabbbbcccc")
    publish(manager, "new", "XXXXYYYYZZZZ")
    manager.release(reserved(manager, "used again", "aaaabbbbcccc"))
    assert counters(manager) == (0, 10, 6)
    for num_fresh, left in ((4, (3, 3)), (5, (3, 2)), (6, (3, 1)), (7, (3, 0)), (8, (2, 0))):
        room = manager.reserve("room", 1, num_fresh * P)
        assert room is not None
        found = [
            len(manager.pool.find(keys_of(prefix).tables[0]))
            for prefix in ("aaaabbbbcccc", "XXXXYYYYZZZZ")
        ]
        assert tuple(found) == left
        manager.release(room)
    assert manager.pool.num_evicted == 4


def test_pages_in_use_are_never_evicted() -> None:
    manager = manager_of(6)
    publish(manager, "first", "aaaabbbb")
    reader = reserved(manager, "reader", "aaaabbbb")
    assert manager.reserve("too much", 1, 4 * P) is None
    other = manager.reserve("rest", 1, 3 * P)
    assert other is not None
    assert set(other.page_tables[0]).isdisjoint(reader.page_tables[0])
    assert manager.pool.num_evicted == 0


def test_found_pages_are_no_room_for_fresh_ones_and_a_wait_changes_nothing() -> None:
    manager = manager_of(6)
    publish(manager, "first", "aaaabbbb")
    holder = manager.reserve("holder", 1, 3 * P)
    assert holder is not None
    keys = keys_of("aaaabbbb")
    before = counters(manager)
    assert before == (3, 3, 2)
    assert manager.reserve("waits", 1, 8 + 5, keys) is None, "two found and two fresh, one is free"
    assert counters(manager) == before
    assert len(manager.pool.find(keys.tables[0])) == 2
    assert manager.reserve("fits", 1, 8 + 4, keys) is not None


def test_a_request_fits_or_not_whatever_the_pool_has_cached() -> None:
    manager = manager_of(6)
    publish(manager, "first", "aaaabbbb", "aaaabbbb")
    with pytest.raises(CapacityError):
        manager.check_fits(2, 13)
    with pytest.raises(CapacityError):
        manager.reserve("r", 2, 13, keys_of("aaaabbbb", "aaaabbbb"))
    assert manager.reserve("s", 2, 12, keys_of("XXXXYYYY", "XXXXYYYY")) is not None


def test_a_second_look_gives_back_what_was_computed_meanwhile() -> None:
    manager = manager_of(20)
    first = reserved(manager, "first", "aaaabbbbX", "aaaabbbbY")
    ahead = reserved(manager, "ahead", "aaaabbbbV", "aaaabbbbW")
    assert manager.look_up_again(ahead) == ahead, "nothing was published yet"
    manager.release(first, publish=True)
    again = manager.look_up_again(ahead)
    assert again.num_cached_tokens == 8
    assert again.generation > ahead.generation
    assert again.page_tables[0][:2] == first.page_tables[0][:2]
    assert counters(manager) == (4, 16, 0)
    with pytest.raises(KVCacheError, match="its live generation is"):
        manager.release(ahead)
    assert manager.look_up_again(again) == again
    manager.release(again)


def test_forgotten_prefixes_are_not_found_and_all_pages_are_blank() -> None:
    manager = manager_of(8)
    publish(manager, "first", "aaaabbbb")
    reader = reserved(manager, "reader", "aaaabbbb")
    publish(manager, "second", "XXXX")
    manager.forget_prefixes()
    assert counters(manager) == (3, 5, 0)
    manager.release(reader)
    assert counters(manager) == (0, 8, 0)
    assert reserved(manager, "next", "aaaabbbb").num_cached_tokens == 0
    assert manager.pool.num_evicted == 0


def test_what_is_reserved_is_a_legal_call_of_ascends_attention() -> None:
    """The operator counts a shared page once for each row."""
    draw = random.Random(3)
    for _ in range(300):
        num_pages = draw.randint(2, 12)
        manager = manager_of(num_pages, page_size=NPU_PAGE)
        prefix, target = "a" * draw.randint(1, 900), draw.randint(1, 500)
        if draw.random() < 0.5:
            fitting = "a" * (num_pages * NPU_PAGE // 2 - 1)
            publish(manager, "first", fitting, target=1)
        try:
            allocation = reserved(manager, "r", prefix, prefix, target=target)
        except CapacityError:
            continue
        lengths = [allocation.num_tokens] * 2
        check_call(lengths, lengths, len(allocation.page_tables[0]), num_pages)


# --- random operations against a model in which every page has a content ---


@dataclass
class Holder:
    """A request of the model."""

    name: str
    prefixes: tuple[str, ...]
    keys: PrefixKeys | None
    allocation: KVAllocation
    has_run: bool = False


@dataclass
class World:
    """A manager, and a model that knows what lies in each page and when a key was used."""

    draw: random.Random
    num_pages: int
    row_ranks: int = 1
    contents: dict[int, str] = field(default_factory=dict)
    holders: dict[str, Holder] = field(default_factory=dict)
    last_used: dict[bytes, int] = field(default_factory=dict)
    """Of the keys that must be found."""

    now: int = 0
    num_hits: int = 0
    num_second_hits: int = 0
    num_waits: int = 0

    def __post_init__(self) -> None:
        self.manager = manager_of(self.num_pages, row_ranks=self.row_ranks)

    def step(self) -> None:
        self.now += 1
        names = sorted(self.holders)
        kind = self.draw.random()
        if kind < 0.4 or not names:
            self.reserve()
        elif kind < 0.65:
            self.run(self.holders[self.draw.choice(names)])
        elif kind < 0.95:
            self.end(self.holders[self.draw.choice(names)])
        elif kind < 0.955:
            self.lose()
        else:
            self.end_wrongly(self.holders[self.draw.choice(names)])
        self.check()

    def prefix(self) -> str:
        length = self.draw.choice((2, 4, 7, 8, 12, 13, 16))
        return "".join(self.draw.choice("aaab") * P for _ in range(4))[:length]

    def reserve(self) -> None:
        first = self.prefix()
        prefixes: tuple[str, ...] = (first,)
        if self.draw.random() < 0.6:
            at = self.draw.randint(0, len(first))
            prefixes = (first, first[:at] + "c" * (len(first) - at))
        keys = keys_of(*prefixes) if self.draw.random() < 0.9 else None
        target = self.draw.randint(1, 6)
        num_row_pages = -(-(len(first) + target) // P)
        if num_row_pages * len(prefixes) > self.num_pages:
            return
        hits = self.hits(keys)
        common = 0 if keys is None else keys.num_shared_tokens // P
        num_distinct = len(prefixes) * num_row_pages - (len(prefixes) - 1) * common
        pinned = {page for table in hits for page in table}
        num_fresh = num_distinct - len(pinned)
        num_idle = len(pinned - self.used())
        num_free = self.num_pages - len(self.used())
        evicted = self.last_used.copy()
        allocation = self.manager.reserve(f"r{self.now}", len(prefixes), len(first) + target, keys)
        if num_fresh > num_free - num_idle:
            assert allocation is None
            self.num_waits += 1
            return
        assert allocation is not None
        self.check_evicted(evicted, hits, num_fresh)
        assert allocation.num_pages == num_distinct
        assert allocation.num_cached_tokens == (len(hits[0]) * P if hits else 0)
        self.num_hits += bool(allocation.num_cached_tokens)
        self.holders[f"r{self.now}"] = Holder(f"r{self.now}", prefixes, keys, allocation)

    def hits(self, keys: PrefixKeys | None) -> list[list[int]]:
        """The leading pages that must be found, as many of each row."""
        if keys is None:
            return []
        found = []
        for chain in keys.tables:
            pages: list[int] = []
            for key in chain:
                if key not in self.last_used:
                    break
                pages += self.manager.pool.find((key,))
            found.append(pages)
        return [pages[: min(map(len, found))] for pages in found]

    def check_evicted(
        self, before: dict[bytes, int], hits: list[list[int]], num_fresh: int
    ) -> None:
        """Only as many as were needed, the oldest, none that is used."""
        gone = [key for key in before if not self.manager.pool.find((key,))]
        num_blank = self.num_pages - len(self.used())
        in_use = {
            key
            for key in before
            if (found := self.manager.pool.find((key,)))
            and (found[0] in self.used() or any(found[0] in table for table in hits))
        }
        idle = set(before) - in_use
        # Used or found pages are no candidates; what was blank before goes first.
        num_blank -= len([key for key in before if key in idle or key in gone])
        num_blank -= len({p for table in hits for p in table} - self.used())
        assert len(gone) == max(0, num_fresh - num_blank)
        left = [before[key] for key in idle if key not in gone]
        for key in gone:
            assert not left or before[key] <= min(left), "a younger one went first"
            del self.last_used[key]

    def used(self) -> set[int]:
        return {p for h in self.holders.values() for t in h.allocation.page_tables for p in t}

    def run(self, holder: Holder) -> None:
        """Look again, then read what is cached and write all else."""
        if holder.has_run:
            return
        before = holder.allocation
        holder.allocation = after = self.manager.look_up_again(before)
        assert after.num_pages == before.num_pages
        assert after.num_cached_tokens >= before.num_cached_tokens
        self.num_second_hits += after.num_cached_tokens > before.num_cached_tokens
        holder.has_run = True
        written = set()
        for row, table in enumerate(after.page_tables):
            for at, page in enumerate(table):
                prefix = holder.prefixes[row]
                is_prefix = (at + 1) * P <= len(prefix)
                lies = prefix[: (at + 1) * P] if is_prefix else f"{holder.name} {row} {at}"
                if at * P < after.num_cached_tokens:
                    assert is_prefix
                    assert self.contents[page] == lies, "not what it would have written itself"
                    continue
                is_shared = is_prefix and at < after.num_shared_tokens // P
                assert is_shared or page not in written, "two write to one page"
                written.add(page)
                self.contents[page] = lies
        others = [h for h in self.holders.values() if h is not holder]
        read = {p for h in others for t in h.allocation.page_tables for p in t}
        assert written.isdisjoint(read), "somebody reads what it writes"
        found = {page for key in self.last_used for page in self.manager.pool.find((key,))}
        assert written.isdisjoint(found), "later requests would read what it writes"

    def end(self, holder: Holder) -> None:
        is_good = holder.has_run and self.draw.random() < 0.7
        self.manager.release(holder.allocation, publish=is_good)
        del self.holders[holder.name]
        if holder.keys is None:
            return
        num_held = holder.allocation.num_cached_tokens // P
        for chain in holder.keys.tables:
            for key in chain if is_good else chain[:num_held]:
                self.last_used[key] = self.now

    def end_wrongly(self, holder: Holder) -> None:
        self.manager.release(holder.allocation)
        with pytest.raises(KVCacheError):
            self.manager.release(holder.allocation, publish=True)
        del self.holders[holder.name]
        if holder.keys is not None:
            for chain in holder.keys.tables:
                for key in chain[: holder.allocation.num_cached_tokens // P]:
                    self.last_used[key] = self.now

    def lose(self) -> None:
        """The group is lost: nothing can be found, and what it held comes back."""
        self.manager.forget_prefixes()
        self.contents.clear()
        self.last_used.clear()
        for holder in self.holders.values():
            self.manager.release(holder.allocation)
        self.holders.clear()

    def check(self) -> None:
        pool, used = self.manager.pool, self.used()
        assert pool.num_used == len(used)
        assert pool.num_used + pool.num_free == self.num_pages
        found = {}
        for key in self.last_used:
            pages = pool.find((key,))
            assert pages, "what was published is still known"
            [found[key]] = pages
        assert len(set(found.values())) == len(found), "a page has two keys"
        for key, page in found.items():
            assert self.contents[page] == key.decode().removeprefix(":")
            prefix = key[:-P]
            assert len(prefix) == 1 or prefix in found, "it can never be found again"
        assert pool.num_cached == len(set(found.values()) - used)


def live(seed: int, num_steps: int) -> World:
    draw = random.Random(seed)
    world = World(draw, num_pages=draw.choice((8, 12, 17, 30)))
    for _ in range(num_steps):
        world.step()
    return world


def check_worlds(seeds: range, num_steps: int) -> None:
    worlds = [live(seed, num_steps) for seed in seeds]
    for name in ("num_hits", "num_second_hits", "num_waits"):
        assert sum(getattr(world, name) for world in worlds) > 10, f"{name}: hardly any"
    assert sum(world.manager.pool.num_evicted for world in worlds) > 100


def test_ten_thousand_random_operations() -> None:
    check_worlds(range(20), 500)


@pytest.mark.long
def test_many_more_random_operations() -> None:
    check_worlds(range(100, 150), 5000)
