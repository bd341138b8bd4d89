"""First steps over pages that hold something already, on any kernel."""

from __future__ import annotations

import itertools

import torch
from attention_cases import (
    Case,
    allocate,
    expected,
    run_first_passes,
    run_step,
    sharing,
    with_common_tokens,
)
from torch import Tensor

from kit.attention.ascend.trial import relative_error
from kit.attention.kernel import PagedKernel
from kit.attention.paged import PagedKV, PagedRequest
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.tokenizer.layout import Rows

NUM_PAGES = 64


def num_common_tokens(rows: Rows) -> int:
    """Return how many leading tokens all rows have in common."""
    same = (len(set(ids)) == 1 for ids in zip(*rows.token_ids, strict=True))
    return sum(itertools.takewhile(bool, same))


def open_with(
    kernel: PagedKernel, case: Case, allocation: KVAllocation, stale: float = torch.nan
) -> PagedRequest:
    """Every slot holds `stale` before: nothing that was not written may count."""
    store = PagedStore(case.shape, NUM_PAGES, allocation.page_size)
    for tensor in store.keys + store.values:
        tensor.fill_(stale)
    return PagedKV("FLASH_ATTN", store, kernel).open(case.layout, case.num_rows, allocation)


def rows_of(request: PagedRequest, allocation: KVAllocation) -> list[Tensor]:
    """Keys, then values, of each row's tokens [B, S, K, D], found through the page tables."""
    tables = torch.tensor(allocation.page_tables, device=request.store.shape.device)
    return [
        pages[tables].flatten(1, 2)[:, : allocation.num_tokens]
        for pages in request.store.keys + request.store.values
    ]


def fill_cached(request: PagedRequest, allocation: KVAllocation, whole: list[Tensor]) -> None:
    """Put into the cached pages what an earlier request wrote there."""
    num_cached = allocation.num_cached_tokens // allocation.page_size
    for pages, rows in zip(request.store.keys + request.store.values, whole, strict=True):
        for row, table in enumerate(allocation.page_tables):
            for at, page in enumerate(table[:num_cached]):
                first = at * allocation.page_size
                pages[page] = rows[row, first : first + allocation.page_size]


def check_reuse(
    kernel: PagedKernel,
    case: Case,
    page_size: int,
    cached: int,
    shared: int,
    limit: float,
    stale: float = torch.nan,
) -> None:
    """Hold a first step with reuse and a later one against the oracle, pages against plain ones.

    limit: largest relative error ||seen - wanted|| / ||wanted|| of the outputs of a pass.
    """
    case = with_common_tokens(case, max(shared, 1))
    plain = allocate(case.layout, num_rows=case.num_rows, page_size=page_size, num_pages=NUM_PAGES)
    request = open_with(kernel, case, plain, stale)
    run_first_passes(request, case)
    whole = rows_of(request, plain)

    allocation = sharing(plain, cached=cached, shared=shared)
    request = open_with(kernel, case, allocation, stale)
    fill_cached(request, allocation, whole)
    before = [tensor.clone() for tensor in request.store.keys + request.store.values]
    results = run_first_passes(request, case)
    wanted_first, wanted_later = expected(case)
    for plan, outputs in results:
        wanted = wanted_first[:, : outputs.shape[1], plan.start : plan.end]
        assert relative_error(outputs, wanted) <= limit, plan
    covered = [(plan.start, plan.end) for plan, _ in results]
    assert covered[0][0] == cached
    assert covered[-1][1] == case.layout.kv_len
    assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))
    for rows, kept in zip(rows_of(request, allocation), whole, strict=True):
        assert rows.equal(kept), "the same bits in every row, wherever they were written"
    own = {page for table in allocation.page_tables for page in table[cached // page_size :]}
    others = sorted(set(range(NUM_PAGES)) - own)
    for tensor, old in zip(request.store.keys + request.store.values, before, strict=True):
        same = torch.equal(tensor[others].nan_to_num(7.0), old[others].nan_to_num(7.0))
        assert same, "a page that was there, or a stranger's, is written"
    later = run_step(request, case, first=False)
    assert relative_error(later, wanted_later) <= limit
