"""The paged KV backend: what it refuses, what it writes, and what can never reach a result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_cases import Case, allocate, equal, make_case, run, run_step

from kit.attention.base import BackendInfo, KVBackend
from kit.attention.paged import PagedKV
from kit.attention.plan import plan_step
from kit.attention.reference_paged import PagedReference
from kit.errors import KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.tokenizer.layout import Layout

LAYOUT = Layout(prefix_len=139, num_special=3, grid=(9, 14), tail_len=2)  # 268 tokens
PAGE_SIZE = 16  # 17 pages a row, 4 slots of the last one unused
NUM_PAGES = 40


@pytest.fixture
def case() -> Case:
    return make_case(LAYOUT)


@pytest.fixture
def store(case: Case) -> PagedStore:
    return PagedStore(case.shape, NUM_PAGES, PAGE_SIZE)


@pytest.fixture
def allocation() -> KVAllocation:
    return allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES)


def backend(store: PagedStore) -> PagedKV:
    return PagedKV("FLASH_ATTN", store, PagedReference())


def own_pages(allocation: KVAllocation) -> list[int]:
    return [page for table in allocation.page_tables for page in table]


def foreign_pages(allocation: KVAllocation) -> list[int]:
    return sorted(set(range(NUM_PAGES)) - set(own_pages(allocation)))


def fill(store: PagedStore, value: float) -> None:
    for tensor in store.keys + store.values:
        tensor.fill_(value)


def test_info_names_what_runs(store: PagedStore) -> None:
    kv: KVBackend = backend(store)
    assert kv.info == BackendInfo("FLASH_ATTN", "cpu_reference", "1", PAGE_SIZE)
    assert kv.pool_bytes == store.num_bytes


def test_request_counts_its_own_pages(store: PagedStore, allocation: KVAllocation) -> None:
    request = backend(store).open(LAYOUT, 2, allocation)
    assert request.num_bytes == 34 * store.page_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 32}, "page_size is 32, the pool's pages hold 16 tokens"),
        ({"num_tokens": 267}, "num_tokens is 267, a row has 268"),
        ({"page_tables": (tuple(range(17)),)}, "page_tables has 1 rows, the request has 2"),
        (
            {"page_tables": (tuple(range(17)), tuple(range(17, 33)))},
            "a page table has 16 pages, 268 tokens need 17",
        ),
        (
            {"page_tables": (tuple(range(17)), tuple(range(24, 41)))},
            "page 40 is not in the pool, which has 40 pages",
        ),
        (
            {"page_tables": (tuple(range(17)), tuple(range(-1, 16)))},
            "page -1 is not in the pool, which has 40 pages",
        ),
        (
            {"page_tables": (tuple(range(17)), tuple(range(16, 33)))},
            "page 16 appears more than once",
        ),
        (
            {"page_tables": (tuple(range(17)), (20, *range(20, 36)))},
            "page 20 appears more than once",
        ),
    ],
)
def test_open_refuses_a_broken_allocation(
    store: PagedStore, allocation: KVAllocation, change: dict[str, Any], message: str
) -> None:
    fill(store, 1.0)
    with pytest.raises(KVCacheError, match=message) as caught:
        backend(store).open(LAYOUT, 2, replace(allocation, **change))
    assert "request r1 (generation 1)" in str(caught.value)
    assert all(bool((tensor == 1).all()) for tensor in store.keys + store.values)


def test_open_refuses_a_missing_allocation(store: PagedStore) -> None:
    with pytest.raises(KVCacheError, match="never run dense"):
        backend(store).open(LAYOUT, 2, None)


def test_open_zeroes_only_the_tails(store: PagedStore, allocation: KVAllocation) -> None:
    fill(store, math.nan)
    backend(store).open(LAYOUT, 2, allocation)
    last_pages = {table[-1] for table in allocation.page_tables}
    for tensor in store.keys + store.values:
        for page in range(NUM_PAGES):
            used = 12 if page in last_pages else PAGE_SIZE  # 268 = 16 * 16 + 12
            assert bool(tensor[page, :used].isnan().all())
            assert bool((tensor[page, used:] == 0).all())


def test_one_write_per_layer(case: Case, store: PagedStore, allocation: KVAllocation) -> None:
    """Tensors count their in-place operations: one per layer and step, whatever it covers."""
    request = backend(store).open(LAYOUT, 2, allocation)
    tensors = store.keys + store.values
    for first in (True, False):
        before = [tensor._version for tensor in tensors]
        run_step(request, case, first=first)
        writes = [tensor._version - old for tensor, old in zip(tensors, before, strict=True)]
        assert writes == [1] * len(tensors)


def test_first_step_writes_the_rows_and_nothing_else(
    case: Case, store: PagedStore, allocation: KVAllocation
) -> None:
    request = backend(store).open(LAYOUT, 2, allocation)
    fill(store, 7.0)
    run_step(request, case, first=True)
    for layer, values in enumerate(store.values):
        for row, table in enumerate(allocation.page_tables):
            slots = values[list(table)].flatten(0, 1)
            written = case.first[layer][row, :, :, -1]
            assert torch.equal(slots[: LAYOUT.kv_len], written)
            assert bool((slots[LAYOUT.kv_len :] == 7).all())
        assert bool((values[foreign_pages(allocation)] == 7).all())


def test_later_step_writes_the_target_only(
    case: Case, store: PagedStore, allocation: KVAllocation
) -> None:
    request = backend(store).open(LAYOUT, 2, allocation)
    run_step(request, case, first=True)
    before = [tensor.clone() for tensor in store.keys + store.values]
    run_step(request, case, first=False)
    target = torch.zeros(NUM_PAGES * PAGE_SIZE, dtype=torch.bool)
    for table in allocation.page_tables:
        for position in range(LAYOUT.prefix_len, LAYOUT.kv_len):
            target[table[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE] = True
    for old, new in zip(before, store.keys + store.values, strict=True):
        changed = (old != new).flatten(0, 1).flatten(1)
        assert not bool(changed[~target].any()), "a prefix, tail or foreign slot was written"
        assert bool(changed[target].any(1).all()), "a target slot was not rewritten"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 16, 128, 176, 512])
def test_poison_never_reaches_a_result(page_size: int, dtype: torch.dtype) -> None:
    """NaN in every foreign page, and in every own slot before the pages were reserved."""
    case = make_case(LAYOUT, dtype=dtype)
    num_pages = 2 * -(-LAYOUT.kv_len // page_size) + 4
    allocation = allocate(LAYOUT, page_size=page_size, num_pages=num_pages)
    outputs = []
    for poison in (0.0, math.nan):
        store = PagedStore(case.shape, num_pages, page_size)
        fill(store, poison)
        outputs.append(run(backend(store).open(LAYOUT, 2, allocation), case))
    assert bool(outputs[0][1].isfinite().all())
    assert equal(*outputs)


def test_permuted_pages_change_nothing(case: Case) -> None:
    ordered = KVAllocation(
        "r1", 1, (tuple(range(17)), tuple(range(17, 34))), LAYOUT.kv_len, PAGE_SIZE
    )
    outputs = []
    for allocation in (
        ordered,
        *(
            allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES, seed=seed)
            for seed in range(3)
        ),
    ):
        store = PagedStore(case.shape, NUM_PAGES, PAGE_SIZE)
        outputs.append(run(backend(store).open(LAYOUT, 2, allocation), case))
    assert all(equal(outputs[0], other) for other in outputs[1:])


def test_a_request_driven_to_nan_leaves_nothing_behind(
    case: Case, store: PagedStore, allocation: KVAllocation
) -> None:
    clean = run(backend(store).open(LAYOUT, 2, allocation), case)
    broken = replace(case, first=tuple(qkv * math.nan for qkv in case.first))
    request = backend(store).open(LAYOUT, 2, allocation)
    assert bool(run_step(request, broken, first=True).isnan().all())
    request.scrub()
    assert all(bool(tensor.isfinite().all()) for tensor in store.keys + store.values)
    assert equal(run(backend(store).open(LAYOUT, 2, allocation), case), clean)


def test_scrub_zeroes_exactly_the_requests_pages(
    store: PagedStore, allocation: KVAllocation
) -> None:
    request = backend(store).open(LAYOUT, 2, allocation)
    fill(store, 3.0)
    request.scrub()
    for tensor in store.keys + store.values:
        assert bool((tensor[own_pages(allocation)] == 0).all())
        assert bool((tensor[foreign_pages(allocation)] == 3).all())


def test_two_requests_share_a_pool(case: Case, store: PagedStore) -> None:
    """Their steps interleave; neither sees the other."""
    small = Layout(prefix_len=7, num_special=1, grid=(4, 4), tail_len=0)  # 24 tokens, 2 pages
    other = make_case(small, seed=1)
    first = allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES)
    free = foreign_pages(first)
    second = KVAllocation("r2", 2, (tuple(free[:2]), tuple(free[2:4])), small.kv_len, PAGE_SIZE)
    alone = run(backend(store).open(LAYOUT, 2, first), case)
    kv = backend(store)
    request, neighbour = kv.open(LAYOUT, 2, first), kv.open(small, 2, second)
    outputs = []
    for step in (True, False):
        outputs.append(run_step(request, case, first=step))
        run_step(neighbour, other, first=step)
    assert equal((outputs[0], outputs[1]), alone)


def test_paged_calls_are_counted_where_the_kernel_ran(
    case: Case, store: PagedStore, allocation: KVAllocation
) -> None:
    kv = backend(store)
    request = kv.open(LAYOUT, 2, allocation)
    step = request.step(plan_step(LAYOUT, first=True))
    q = step.write(0, case.first[0], case.rotary, case.norms[0])
    assert request.num_paged_calls == 0
    step.attend(0, q)
    assert request.num_paged_calls == 1
    with pytest.raises(IndexError):
        step.attend(99, q)
    assert request.num_paged_calls == 1, "a call that failed is no proof"
    assert kv.open(LAYOUT, 2, allocation).num_paged_calls == 0


def test_one_step_object_serves_many_steps(
    case: Case, store: PagedStore, allocation: KVAllocation
) -> None:
    request = backend(store).open(LAYOUT, 2, allocation)
    run_step(request, case, first=True)
    fresh = run_step(request, case, first=False)
    assert torch.equal(run_step(request, case, first=False), fresh)
