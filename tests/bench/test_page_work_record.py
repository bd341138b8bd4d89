"""The check that precedes the timing of page work sees every kind of lost or shared page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.page_work import GEOMETRY, NUM_ROWS, NUM_TOKENS
from bench.workloads.page_work import check_accounting
from kit.kv.allocation import KVAllocation
from kit.kv.manager import KVCacheManager
from kit.kv.prefix import PrefixKeys

PAGES_PER_REQUEST = NUM_ROWS * GEOMETRY.num_pages(NUM_TOKENS)
NUM_PAGES = 3 * PAGES_PER_REQUEST + 1


class Keeping(KVCacheManager):
    """Forgets to take pages back."""

    def release(self, allocation: KVAllocation, *, publish: bool = True) -> None:
        del allocation, publish


class Moving(KVCacheManager):
    """Hands out other page ids than it booked."""

    def __init__(self, pages: dict[int, int]) -> None:
        super().__init__(GEOMETRY, NUM_PAGES, NUM_ROWS)
        self._moved = pages
        self._booked: dict[str, KVAllocation] = {}

    def reserve(
        self, request_id: str, num_rows: int, num_tokens: int, prefix: PrefixKeys | None = None
    ) -> KVAllocation | None:
        allocation = super().reserve(request_id, num_rows, num_tokens, prefix)
        if allocation is None:
            return None
        self._booked[request_id] = allocation
        tables = allocation.page_tables
        moved = tuple(tuple(self._moved.get(page, page) for page in table) for table in tables)
        return replace(allocation, page_tables=moved)

    def release(self, allocation: KVAllocation, *, publish: bool = True) -> None:
        super().release(self._booked[allocation.request_id], publish=publish)


def test_sound_accounting() -> None:
    check = check_accounting(KVCacheManager(GEOMETRY, NUM_PAGES, NUM_ROWS))
    assert check.equal
    assert check.seen == 0
    assert check.compared.startswith("pages of 3 requests")


def test_pages_that_do_not_come_back() -> None:
    check = check_accounting(Keeping(GEOMETRY, NUM_PAGES, NUM_ROWS))
    assert not check.equal
    assert check.seen == 3 * PAGES_PER_REQUEST


@pytest.mark.parametrize(
    "pages", [{0: 1}, {0: PAGES_PER_REQUEST}, {0: NUM_PAGES}, {0: -1}], ids=str
)
def test_one_page_given_out_twice_or_out_of_range(pages: dict[int, int]) -> None:
    check = check_accounting(Moving(pages))
    assert not check.equal
    assert check.seen == 1
