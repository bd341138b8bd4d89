"""Tier A: the Ascend kernel through an emulation of its operators; nothing here ran on an NPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import npu_emulation
import pytest
import torch
from attention_cases import Case, Heads, allocate, expected, largest_error, make_case, run, run_step
from fia_emulation import CALLS, ContractError
from fia_faults import (
    ILLEGAL,
    ILLEGAL_OVER_ROWS,
    SILENT,
    SILENT_OVER_PAGES,
    Plant,
)

from kit.attention.ascend.fia import FiaDense, FiaPaged, Form
from kit.attention.ascend.operators import Operators, load_operators
from kit.attention.ascend.rotation import try_rotation
from kit.attention.dense import DenseKV, DenseRequest
from kit.attention.paged import PagedKV, PagedRequest
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.tokenizer.layout import Layout, ReferenceSpan

HEADS = Heads(num_kv_heads=2, group=2, head_dim=64)
LIMIT = 2e-2
"""Largest absolute error in bfloat16."""

LAYOUTS = {
    "a page ends inside the prefix": Layout(150, 1, (5, 9), 1),
    "a page ends inside the target": Layout(100, 3, (8, 9), 2),
    "a page ends exactly between": Layout(127, 1, (4, 8), 1),
    "a page ends with the row": Layout(120, 1, (9, 15), 1),
    "the first page ends before the row by one": Layout(63, 1, (7, 9), 1),
    "three pages, past 256": Layout(250, 1, (3, 5), 1),
    "two references in the prefix": Layout(
        250,
        1,
        (5, 9),
        1,
        (ReferenceSpan(10, (9, 13), (4, 5), 22), ReferenceSpan(155, (4, 5), (2, 3), 8)),
    ),
}
FORMS = ("TND", "BSH", "rows")
LAYOUT = LAYOUTS["a page ends inside the prefix"]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    npu_emulation.install(monkeypatch.setitem)
    prepare = try_rotation(torch.device("cpu"), HEADS.head_dim).part
    assert prepare is not None
    CALLS.clear()
    return replace(load_operators(), prepare=prepare)


def case_of(layout: Layout = LAYOUT, **settings: Any) -> Case:
    return make_case(layout, dtype=torch.bfloat16, **{"heads": HEADS, **settings})


def open_request(
    case: Case,
    operators: Operators,
    form: Form = "TND",
    *,
    num_pages: int = 11,
    allocation: KVAllocation | None = None,
) -> PagedRequest:
    """Every slot that the request does not own holds NaN."""
    store = PagedStore(case.shape, num_pages, 128)
    for tensor in store.keys + store.values:
        tensor.fill_(math.nan)
    kernel = FiaPaged(operators, case.heads.num_kv_heads * case.heads.group, form)
    if allocation is None:
        allocation = allocate(
            case.layout, num_rows=case.num_rows, page_size=128, num_pages=num_pages
        )
    return PagedKV("FLASH_ATTN", store, kernel).open(case.layout, case.num_rows, allocation)


def open_rows(case: Case, operators: Operators) -> DenseRequest:
    kernel = FiaDense(operators, case.heads.num_kv_heads * case.heads.group)
    return DenseKV("FLASH_ATTN", case.shape, kernel).open(case.layout, case.num_rows, None)


def opened(case: Case, operators: Operators, form: str) -> PagedRequest | DenseRequest:
    if form == "rows":
        return open_rows(case, operators)
    return open_request(case, operators, "BSH" if form == "BSH" else "TND")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_fia_against_the_oracle(operators: Operators, layout: Layout, form: str) -> None:
    case = case_of(layout)
    assert largest_error(run(opened(case, operators, form), case), expected(case)) <= LIMIT


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "heads", [Heads(8, 4, 128), Heads(1, 4, 128), Heads(1, 1, 64)], ids=["80B", "TP8", "one"]
)
def test_heads_and_one_row(operators: Operators, heads: Heads, form: str) -> None:
    case = case_of(Layout(130, 1, (2, 3), 1), heads=heads, num_rows=1)
    assert largest_error(run(opened(case, operators, form), case), expected(case)) <= LIMIT


def test_pages_and_rows_differ_by_the_page_table_only(operators: Operators) -> None:
    """What paged is compared with in a benchmark: the same operator, the same arguments."""
    case = case_of()
    paged, rows = (run(opened(case, operators, form), case) for form in ("BSH", "rows"))
    assert all(torch.equal(a, b) for a, b in zip(paged, rows, strict=True))
    names = [name for name, _ in CALLS]
    assert names.count("write") == 4  # into pages only
    dense = [given for name, given in CALLS if name == "attend"][-8:]
    assert not any({"block_table", "block_size"} & set(given) for given in dense)
    assert dense[0]["actual_seq_lengths"] == [151, 151]
    assert dense[1]["actual_seq_lengths_kv"] == [196, 196]


def test_a_layer_is_one_write_and_one_call_per_segment(operators: Operators) -> None:
    case = case_of()
    run(open_request(case, operators), case)
    prepared = ["rotary", "rms_norm"] * 2
    assert [name for name, _ in CALLS] == [*prepared, "write", "attend", "attend"] * 4
    causal, full, causal_below = [given for name, given in CALLS if name == "attend"][:3]
    # The dispatcher leaves out what equals a default.
    assert (causal["sparse_mode"], full.get("sparse_mode", 0)) == (3, 0)
    assert causal["actual_seq_lengths"] == [151, 302]
    assert full["actual_seq_lengths_kv"] == [196, 196]
    assert full["scale"] == 0.125
    # All layers share the mask and the page table.
    assert causal["atten_mask"] is causal_below["atten_mask"]
    assert causal["block_table"] is causal_below["block_table"]


@pytest.mark.parametrize("form", FORMS)
def test_a_lone_last_query_goes_without_the_mask(operators: Operators, form: str) -> None:
    """The operator's decoding branch takes no mask of 2048 by its documents."""
    case = case_of(Layout(150, 1, (5, 9), 1))
    request = opened(case, operators, form)
    run(request, case)
    later = [given for name, given in CALLS if name == "attend"][-4 if form != "BSH" else -8 :]
    assert all(given.get("sparse_mode", 0) == 0 for given in later)
    assert not any("atten_mask" in given for given in later)


def test_the_form_of_one_row_calls_once_for_each_row(operators: Operators) -> None:
    case = case_of()
    run(open_request(case, operators, "BSH"), case)
    assert [name for name, _ in CALLS if name in ("write", "attend")] == [
        "write",
        *["attend"] * 4,
    ] * 4


def test_a_later_step_leaves_the_prefix_pages_alone(operators: Operators) -> None:
    case = case_of(Layout(256, 1, (5, 9), 1))
    request = open_request(case, operators)
    run_step(request, case, first=True)
    kept = [table[:2] for table in request._allocation.page_tables]
    store = request.store
    before = [store.keys[0][list(pages)].clone() for pages in kept]
    run_step(request, case, first=False)
    for pages, keys in zip(kept, before, strict=True):
        assert torch.equal(store.keys[0][list(pages)], keys)


@pytest.mark.parametrize(
    "plant", (SILENT | SILENT_OVER_PAGES).values(), ids=(SILENT | SILENT_OVER_PAGES).keys()
)
def test_a_legal_call_that_means_something_else_is_far_from_the_oracle(
    operators: Operators, plant: Plant
) -> None:
    case = case_of()
    outputs = run(open_request(case, plant(operators)), case)
    assert not largest_error(outputs, expected(case)) <= 5 * LIMIT


@pytest.mark.parametrize(("plant", "said"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_a_wrong_call_is_refused(operators: Operators, plant: Plant, said: str) -> None:
    case = case_of()
    with pytest.raises(ContractError, match=said):
        run_step(open_request(case, plant(operators)), case, first=True)


@pytest.mark.parametrize(
    ("plant", "said"), ILLEGAL_OVER_ROWS.values(), ids=ILLEGAL_OVER_ROWS.keys()
)
def test_a_wrong_call_over_rows_is_refused(operators: Operators, plant: Plant, said: str) -> None:
    case = case_of()
    with pytest.raises(ContractError, match=said):
        run_step(open_rows(case, plant(operators)), case, first=True)


@pytest.mark.parametrize("plant", SILENT.values(), ids=SILENT.keys())
def test_a_legal_call_over_rows_that_means_something_else_is_far_from_the_oracle(
    operators: Operators, plant: Plant
) -> None:
    case = case_of()
    outputs = run(open_rows(case, plant(operators)), case)
    assert not largest_error(outputs, expected(case)) <= 5 * LIMIT
