"""Faults put in on purpose: each must show, and only where it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace

import pytest
import torch
from attention_cases import (
    Case,
    allocate,
    equal,
    expected,
    largest_error,
    make_case,
    run,
    run_step,
)
from torch import Tensor

from kit.attention import oracle
from kit.attention.base import RequestKV, StepKV
from kit.attention.dense import DenseKV, DenseRequest
from kit.attention.kernel import PagedKernel, PageTables
from kit.attention.paged import PagedKV
from kit.attention.plan import Segment, StepPlan
from kit.attention.reference_dense import DenseReference
from kit.attention.reference_paged import PagedReference
from kit.attention.rotary import QKNorm, Rotary
from kit.kv.allocation import KVAllocation
from kit.kv.store import DenseStore, PagedStore
from kit.tokenizer.layout import Layout

LAYOUT = Layout(prefix_len=41, num_special=1, grid=(9, 14), tail_len=2)
PAGE_SIZE = 16
NUM_PAGES = 30
SEEN = 1e-3
"""An error at least this large turns a comparison with the limit 1e-5 red."""

Outputs = tuple[Tensor, Tensor]


@pytest.fixture
def case() -> Case:
    return make_case(LAYOUT)


def run_paged(case: Case, kernel: PagedKernel) -> Outputs:
    allocation = allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES)
    store = PagedStore(case.shape, NUM_PAGES, PAGE_SIZE)
    return run(PagedKV("FLASH_ATTN", store, kernel).open(LAYOUT, 2, allocation), case)


def run_dense(case: Case) -> Outputs:
    return run(DenseKV("FLASH_ATTN", case.shape, DenseReference()).open(LAYOUT, 2, None), case)


class WriteAndRead:
    """A StepKV whose writes and reads may follow different plans or tables."""

    def __init__(self, writer: StepKV, reader: StepKV) -> None:
        self._writer, self._reader = writer, reader

    @property
    def address_key(self) -> object:
        return self._writer.address_key, self._reader.address_key

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        return self._writer.write(layer, qkv, rotary, norm)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return self._reader.attend(layer, q)


class CorruptTable:
    """Reads through a page table that `damage` changed after the write."""

    name = version = "corrupt"

    def __init__(self, damage: Callable[[Tensor], None]) -> None:
        self._kernel, self._damage = PagedReference(), damage

    def step(self, store: PagedStore, tables: PageTables, plan: StepPlan) -> StepKV:
        pages = tables.pages.clone()
        self._damage(pages)
        corrupt = PageTables(pages, tables.page_size)
        return WriteAndRead(
            self._kernel.step(store, tables, plan), self._kernel.step(store, corrupt, plan)
        )


def swap_rows(pages: Tensor) -> None:
    pages[:, 0] = pages[:, 0].flip(0)


def foreign_page(pages: Tensor) -> None:
    pages[0, 1] = next(page for page in range(NUM_PAGES) if page not in pages)


def shifted(pages: Tensor) -> None:
    pages[:] = pages.roll(1, dims=1)


@pytest.mark.parametrize("damage", [swap_rows, foreign_page, shifted])
def test_corrupt_page_table_changes_paged_only(
    case: Case, damage: Callable[[Tensor], None]
) -> None:
    wanted = expected(case)
    paged = run_paged(case, CorruptTable(damage))
    assert largest_error(paged, wanted) >= SEEN
    assert largest_error(run_dense(case), wanted) <= 1e-5


def test_page_swapped_between_steps_changes_the_later_step(case: Case) -> None:
    """A table that passes every check at its door, but is not the one that was written."""
    allocation = allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES)
    kv = PagedKV("FLASH_ATTN", PagedStore(case.shape, NUM_PAGES, PAGE_SIZE), PagedReference())
    first = run_step(kv.open(LAYOUT, 2, allocation), case, first=True)
    (a, *rest_a), (b, *rest_b) = allocation.page_tables
    swapped = replace(allocation, page_tables=((b, *rest_a), (a, *rest_b)))
    later = run_step(kv.open(LAYOUT, 2, swapped), case, first=False)
    wanted = expected(case)
    assert largest_error((first, first), (wanted[0], wanted[0])) <= 1e-5
    assert largest_error((later, later), (wanted[1], wanted[1])) >= SEEN


def short_row_stride(case: Case) -> DenseStore:
    """Rows that overlap by one token: the stride of the row axis is one token short."""
    store = DenseStore.take(case.shape, 2, LAYOUT.kv_len)
    token = case.heads.num_kv_heads * case.heads.head_dim

    def overlap(tensor: Tensor) -> Tensor:
        row, *others = tensor.stride()
        return tensor.as_strided(tensor.shape, (row - token, *others))

    store.keys = tuple(overlap(tensor) for tensor in store.keys)
    store.values = tuple(overlap(tensor) for tensor in store.values)
    return store


class ReadsRowZero:
    """Reads the keys of row 0 for every row."""

    name = version = "row zero"

    def step(self, store: DenseStore, plan: StepPlan) -> StepKV:
        first_row = copy(store)
        first_row.keys = tuple(tensor[:1].expand_as(tensor) for tensor in store.keys)
        kernel = DenseReference()
        return WriteAndRead(kernel.step(store, plan), kernel.step(first_row, plan))


@pytest.mark.parametrize("fault", ["stride", "row"])
def test_wrong_index_in_the_dense_store_changes_dense_only(case: Case, fault: str) -> None:
    if fault == "stride":
        request = DenseRequest(short_row_stride(case), DenseReference())
    else:
        request = DenseRequest(DenseStore.take(case.shape, 2, LAYOUT.kv_len), ReadsRowZero())
    wanted = expected(case)
    assert largest_error(run(request, case), wanted) >= SEEN
    assert largest_error(run_paged(case, PagedReference()), wanted) <= 1e-5


def plan_of(*segments: tuple[int, int, bool]) -> StepPlan:
    return StepPlan(segments[0][0], tuple(Segment(*segment) for segment in segments))


PREFIX, IMAGE, END = LAYOUT.prefix_len, LAYOUT.image_span.start, LAYOUT.kv_len
WRONG_PLANS = {
    "specials see the image": plan_of((PREFIX, END, False)),
    "image is causal": plan_of((PREFIX, END, True)),
    "image starts one token late": plan_of((PREFIX, IMAGE + 1, True), (IMAGE + 1, END, False)),
}


@pytest.mark.parametrize("plan", WRONG_PLANS.values(), ids=WRONG_PLANS.keys())
@pytest.mark.parametrize("paged", [True, False])
def test_wrong_segments_turn_the_oracle_comparison_red(
    case: Case, plan: StepPlan, paged: bool
) -> None:
    request: RequestKV
    if paged:
        store = PagedStore(case.shape, NUM_PAGES, PAGE_SIZE)
        allocation = allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES)
        request = PagedKV("FLASH_ATTN", store, PagedReference()).open(LAYOUT, 2, allocation)
    else:
        request = DenseKV("FLASH_ATTN", case.shape, DenseReference()).open(LAYOUT, 2, None)
    first = run_step(request, case, first=True)
    later = run_step(request, case, first=False, plan=plan)
    assert largest_error((first, later), expected(case)) >= SEEN


class StaleTimestep:
    """Later steps rewrite the image only, so images miss the new <timestep>."""

    name = version = "stale"

    def __init__(self) -> None:
        self._kernel = DenseReference()

    def step(self, store: DenseStore, plan: StepPlan) -> StepKV:
        kept = [tensor[:, PREFIX:IMAGE] for tensor in store.keys + store.values]
        inner, is_later = self._kernel.step(store, plan), plan.start > 0

        class Step(WriteAndRead):
            def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
                old = [tensor.clone() for tensor in kept]
                q = super().write(layer, qkv, rotary, norm)
                if is_later:
                    for tensor, value in zip(kept, old, strict=True):
                        tensor.copy_(value)
                return q

        return Step(inner, inner)


def test_images_that_miss_the_timestep_turn_the_oracle_comparison_red(case: Case) -> None:
    stale = run(DenseKV("FLASH_ATTN", case.shape, StaleTimestep()).open(LAYOUT, 2, None), case)
    assert largest_error(stale, expected(case)) >= SEEN
    mask = oracle.layout_mask(LAYOUT)
    mask[IMAGE:, PREFIX:IMAGE] = False
    assert largest_error(run_dense(case), expected(case, mask)) >= SEEN


def test_special_that_sees_the_image_differs_from_the_oracle(case: Case) -> None:
    mask = oracle.layout_mask(LAYOUT)
    mask[PREFIX:IMAGE] = True
    assert largest_error(run_dense(case), expected(case, mask)) >= SEEN


class NoTail(PagedStore):
    """A store that forgets to zero tails."""

    def zero_tail(self, allocation: KVAllocation) -> None:
        pass


@pytest.mark.parametrize(("store_type", "is_clean"), [(PagedStore, True), (NoTail, False)])
def test_tails_that_are_not_zeroed_are_seen(
    case: Case, store_type: type[PagedStore], is_clean: bool
) -> None:
    store = store_type(case.shape, NUM_PAGES, PAGE_SIZE)
    for tensor in store.keys + store.values:
        tensor.fill_(math.nan)
    allocation = allocate(LAYOUT, page_size=PAGE_SIZE, num_pages=NUM_PAGES)
    PagedKV("FLASH_ATTN", store, PagedReference()).open(LAYOUT, 2, allocation)
    used = LAYOUT.kv_len % PAGE_SIZE
    assert used > 0, "the case needs a tail"
    tails = [
        tensor[table[-1], used:]
        for tensor in store.keys + store.values
        for table in allocation.page_tables
    ]
    assert all(bool((tail == 0).all()) for tail in tails) is is_clean


def test_bit_comparison_sees_one_unit_in_the_last_place(case: Case) -> None:
    outputs = run_dense(case)
    nudged = outputs[1].clone()
    nudged.view(-1)[0] = torch.nextafter(nudged.view(-1)[0], torch.tensor(math.inf))
    assert not equal(outputs, (outputs[0], nudged))
