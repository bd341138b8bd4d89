"""What the page says of the pool, against the kit's own page accounting."""

from __future__ import annotations

import re
from typing import Any

import pytest
from demo_pools import PAGE_SIZE, answer_of, make_manager, pool_of, size_of

from kit.demo.answers import Info, read_pool
from kit.demo.pool_text import fits, holders, pages_per_image
from kit.tokenizer.layout import Layout

LAYOUT = Layout(prefix_len=10, num_special=1, grid=(3, 3), tail_len=2)


def info_with(*sides: int) -> Info:
    body: Any = {}
    return Info(
        name="m",
        fingerprint="f",
        mode="paged_scheduler",
        sizes=tuple(size_of(side) for side in sides),
        page_size=PAGE_SIZE,
        page_bytes=512,
        pool_bytes=0,
        defaults={},
        limits={},
        cfg_distilled=False,
        reference_refusal=None,
        refused={},
        raw=body,
    )


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("prefix_tokens", [3, 10, 11])
@pytest.mark.parametrize("side", [2, 3, 5])
def test_as_many_pictures_fit_as_the_pool_takes(
    side: int, prefix_tokens: int, num_rows: int
) -> None:
    manager = make_manager(61)
    pool = pool_of(manager, {"first": LAYOUT})
    text = fits(info_with(side), pool, prefix_tokens=prefix_tokens, num_rows=num_rows)
    shown = re.search(r'data-need="(\d+)">(\d+)<', text)
    assert shown is not None
    layout = Layout(prefix_tokens, 1, (side, side), 2)
    taken = 0
    while manager.reserve(f"r{taken}", num_rows, layout.kv_len) is not None:
        taken += 1
    assert int(shown[2]) == taken > 0
    need = pages_per_image(
        size_of(side), prefix_tokens=prefix_tokens, num_rows=num_rows, page_size=PAGE_SIZE
    )
    assert int(shown[1]) == need


def test_sizes_of_the_same_need_share_a_line() -> None:
    pool = pool_of(make_manager(61), {"first": LAYOUT})
    text = fits(info_with(2, 2, 6), pool, prefix_tokens=None, num_rows=2)
    assert text.count("<tr>") == 3  # the head and two lines
    assert "For 16 prefix tokens (of a short prompt) and two rows" in text


def test_requests_are_shown_with_their_page_tables_and_tokens() -> None:
    pool = pool_of(make_manager(61), {"first": LAYOUT, "second": LAYOUT}, step=3)
    text = holders(pool, {"first": {1: 40, 2: 20, 3: 20}})
    for part in (
        "running; step 3 of 9; 10 pages",
        "waits, its pages are booked; step 0 of 9; 10 pages",
        "<span>page table</span> 0, 1, 2, 3, 4<",
        "<span>page table</span> 15, 16, 17, 18, 19<",
        "Step 3 wrote 20 tokens, all rows together; step 1 also wrote the prefix, 20 tokens,",
        "Nothing written yet.",
    ):
        assert part in text
    assert text.count("<title>step ") == text.count('class="kit-bar-target"') == 3
    # The first step alone wrote the prefix: half of its 40 tokens, on top of the target.
    assert text.count('class="kit-bar-prefix"') == 1
    assert 'class="kit-bar-prefix" x="0" y="0.00" width="5" height="12.00"' in text


def test_a_prefix_that_was_found_or_shared_is_not_told_as_written() -> None:
    answer = answer_of(make_manager(61), {"first": LAYOUT}, step=2)
    assert "found" not in holders(read_pool(answer), {})
    answer["requests"][0]["cached_tokens"] = 8
    text = holders(read_pool(answer), {"first": {1: 24, 2: 20}})
    assert "running; step 2 of 9; 10 pages; 8 tokens of each row found" in text
    assert "step 1 also wrote the prefix, 4 tokens," in text
    later = holders(read_pool(answer), {"first": {2: 20}})
    assert "Step 2 wrote 20 tokens, all rows together." in later
    assert "step 1" not in later.split("<svg")[1].split("</p>")[0]


def test_an_empty_pool_says_so() -> None:
    assert "No request holds pages now" in holders(pool_of(make_manager(8), {}), {})
