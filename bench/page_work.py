"""Measures what the page accounting costs a request, against a plain Python loop.

A case is timed in rounds, all cases in turn in each round, so that a slow moment of the machine
hits all of them. Times are the best of the rounds; growth is the median over the rounds of large
pool over small pool, timed one right after the other.

    fresh      one request at a time in a pool that was never used
    scattered  one request at a time in a pool whose free pages are in random order
    busy       scattered, with ten holders; each time a random one leaves and a new one comes
    crowded    busy, with half of the pool held: a thousand holders in the large pool

    found      prefix caching: keys, reservation and release of an edit whose prefix is known
    not_found  the same with another picture each time: pages are published, and evicted

Growth in the crowded pool is reported without a limit: it is the processor's cache missing the page
tables of a thousand requests, each of which was last touched long ago.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from itertools import count
from statistics import median
from typing import get_args

from kit.config.deploy import PrefixLevel
from kit.errors import CapacityError
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.kv.prefix import PrefixScope, prefix_keys
from kit.tokenizer.layout import Layout, ReferenceSpan, Rows

NUM_ROWS = 2
NUM_TOKENS = 4300
GEOMETRY = KVGeometry(num_layers=32, num_kv_heads=8, head_dim=128, dtype_bytes=2, page_size=176)
SMALL_POOL, LARGE_POOL = 1_000, 100_000

MAX_RESERVE_RELEASE_RATIO = 0.08
"""Reserve and release of one request, as a share of the yardstick."""

MAX_GROWTH = 0.10
"""Extra cost of the large pool over the small one, in every case but the crowded one."""

MAX_REFUSAL_RATIO = 0.05
"""A reservation that must wait, or a request that can never fit, as a share of the yardstick."""

MAX_PREFIX_RATIO = 0.55
"""Keys, reservation, publication and release of one edit, as a share of the yardstick."""

EDIT = Layout(
    prefix_len=6600,
    num_special=1,
    grid=(64, 64),
    tail_len=3,
    # Behind an official system prompt; 1024x1024 pixels.
    references=(ReferenceSpan(1400, (64, 64), (32, 32), num_patch_tokens=1024),),
)
"""Two rows of 10,697 tokens, equal up to the prompt behind the picture."""

_CALLS = 20
_PREFIX_CALLS = 4
_NUM_HOLDERS = 10
_PAGES_PER_REQUEST = NUM_ROWS * GEOMETRY.num_pages(NUM_TOKENS)

# The images that a refusal looks through: name and number of image tokens.
_SIZES = {f"{16 * side}x{16 * side}": side * side for side in range(8, 73, 2)}


def measure(repeats: int = 200) -> dict[str, float]:
    """Time every case in `repeats` rounds.

    Returns, for each case, `<case>_s` (one call) and `<case>_ratio` (its share of the yardstick,
    held against the limits above), and `growth_<pool>` (0.02 is 2 %).
    """
    cases: dict[str, Callable[[], object]] = {
        "refusal_waits": _refusal_waits(),
        "refusal_never_fits": _refusal_never_fits(),
    }
    pools = (SMALL_POOL, LARGE_POOL)
    cases |= {f"fresh_{n}": _one_at_a_time(_manager(n)) for n in pools}
    cases |= {f"scattered_{n}": _one_at_a_time(_scattered(n)) for n in pools}
    cases |= {f"busy_{n}": _turnover(n, _NUM_HOLDERS) for n in pools}
    cases |= {f"crowded_{n}": _turnover(n, n // _PAGES_PER_REQUEST // 2) for n in pools}
    cases |= {"found": _edits(["a picture"]), "not_found": _edits(map(str, count()))}
    samples: dict[str, list[float]] = {name: [] for name in ("yardstick", *cases)}
    for at in range(repeats):
        samples["yardstick"].append(_time_s(_yardstick, 1))
        # Forwards and backwards, so that neither pool of a pair is always the second.
        for name in list(cases)[:: 1 if at % 2 else -1]:
            num_calls = _PREFIX_CALLS if "found" in name else _CALLS
            samples[name].append(_time_s(cases[name], num_calls))
    numbers = {f"{name}_s": min(times) for name, times in samples.items()}
    for name in cases:
        numbers[f"{name}_ratio"] = numbers[f"{name}_s"] / numbers["yardstick_s"]
    for pool in ("fresh", "scattered", "busy", "crowded"):
        pairs = zip(samples[f"{pool}_{SMALL_POOL}"], samples[f"{pool}_{LARGE_POOL}"], strict=True)
        numbers[f"growth_{pool}"] = median(large / small for small, large in pairs) - 1
    return numbers


def _yardstick() -> int:
    total = 0
    for i in range(20_000):
        total += i
    return total


def _time_s(call: Callable[[], object], num_calls: int) -> float:
    # The case before left the processor's cache full of its own pages.
    for _ in range(num_calls):
        call()
    started = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - started) / num_calls


def _manager(num_pages: int) -> KVCacheManager:
    return KVCacheManager(GEOMETRY, num_pages, max_rows_per_request=NUM_ROWS)


def _reserve(manager: KVCacheManager, request_id: str) -> KVAllocation:
    allocation = manager.reserve(request_id, NUM_ROWS, NUM_TOKENS)
    assert allocation is not None, "the pool was made large enough"
    return allocation


def _scattered(num_pages: int) -> KVCacheManager:
    """Return an empty manager that gave out all its pages and took them back in random order."""
    manager, draw = _manager(num_pages), random.Random(num_pages)
    held: list[KVAllocation] = []
    while manager.pool.num_free:
        row_pages = min(draw.randint(1, 8), manager.pool.num_free)
        row = manager.reserve(f"warm-up {len(held)}", 1, row_pages * GEOMETRY.page_size)
        assert row is not None, "its pages are free"
        held.append(row)
    draw.shuffle(held)
    for allocation in held:
        manager.release(allocation)
    return manager


def _one_at_a_time(manager: KVCacheManager) -> Callable[[], object]:
    def cycle() -> None:
        manager.release(_reserve(manager, "request"))

    return cycle


def _turnover(num_pages: int, num_holders: int) -> Callable[[], object]:
    manager, draw = _scattered(num_pages), random.Random(num_pages)
    ids = [f"request {i}" for i in range(num_holders)]
    held = [_reserve(manager, request_id) for request_id in ids]

    def cycle() -> None:
        at = draw.randrange(len(held))
        manager.release(held[at])
        held[at] = _reserve(manager, ids[at])

    return cycle


def edit_rows() -> Rows:
    """Return two rows of the layout of EDIT, with one another's tokens up to the prompt."""
    draw, layout = random.Random(0), EDIT
    ids = [draw.randrange(1000, 130_000) for _ in range(layout.seq_len)]
    prompt = layout.references[0].end + 1
    hidden = [5] * (layout.prefix_len - prompt)
    return Rows(layout, (tuple(ids), (*ids[:prompt], *hidden, *ids[layout.prefix_len :])))


def _edits(pictures: Iterable[str]) -> Callable[[], object]:
    """One edit at a time, of these pictures; the last one again and again."""
    manager, rows, left = _manager(LARGE_POOL), edit_rows(), iter(pictures)
    levels = frozenset(get_args(PrefixLevel))
    scope = PrefixScope("f" * 64, "bfloat16", GEOMETRY.page_size, row_ranks=1, levels=levels)
    picture = ""

    def edit() -> None:
        nonlocal picture
        picture = next(left, picture)
        keys = prefix_keys(scope, rows, "instruct", pictures=[picture], picture_seed=7)
        allocation = manager.reserve("request", rows.num_rows, EDIT.kv_len, keys)
        assert allocation is not None, "the pool was made large enough"
        manager.release(allocation, publish=True)

    return edit


def _refusal_waits() -> Callable[[], object]:
    manager = _manager(LARGE_POOL)
    held = 0
    while manager.reserve(f"holder {held}", NUM_ROWS, NUM_TOKENS) is not None:
        held += 1

    def refusal() -> None:
        assert manager.reserve("request", NUM_ROWS, NUM_TOKENS) is None, "the pool is full"

    return refusal


def _refusal_never_fits() -> Callable[[], object]:
    manager = _manager(SMALL_POOL)
    too_many = manager.largest_num_tokens(NUM_ROWS) + 1

    def largest_size(num_tokens: int) -> str | None:
        fitting = (name for name, size_tokens in _SIZES.items() if size_tokens <= num_tokens)
        return max(fitting, key=_SIZES.__getitem__, default=None)

    def refusal() -> None:
        try:
            manager.check_fits(NUM_ROWS, too_many, request_id="request", largest_size=largest_size)
        except CapacityError:
            return
        raise AssertionError("the request is larger than the pool")

    return refusal
