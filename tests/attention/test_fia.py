"""Tier A: the Ascend kernel through an emulation of its operators; nothing here ran on an NPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fia_emulation
import pytest
import torch
from attention_cases import Case, Heads, allocate, expected, largest_error, make_case, run, run_step
from fia_emulation import CALLS, ContractError
from torch import Tensor

from kit.attention.ascend.fia import FiaPaged, Form
from kit.attention.ascend.operators import Operators, load_operators
from kit.attention.paged import PagedKV, PagedRequest
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.tokenizer.layout import Layout

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
}
LAYOUT = LAYOUTS["a page ends inside the prefix"]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    fia_emulation.install(monkeypatch.setitem)
    return load_operators()


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


@pytest.mark.parametrize("form", ["TND", "BSH"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_fia_against_the_oracle(operators: Operators, layout: Layout, form: Form) -> None:
    case = case_of(layout)
    assert largest_error(run(open_request(case, operators, form), case), expected(case)) <= LIMIT


@pytest.mark.parametrize("form", ["TND", "BSH"])
@pytest.mark.parametrize(
    "heads", [Heads(8, 4, 128), Heads(1, 4, 128), Heads(1, 1, 64)], ids=["80B", "TP8", "one"]
)
def test_heads_and_one_row(operators: Operators, heads: Heads, form: Form) -> None:
    case = case_of(Layout(130, 1, (2, 3), 1), heads=heads, num_rows=1)
    assert largest_error(run(open_request(case, operators, form), case), expected(case)) <= LIMIT


def test_a_layer_is_one_write_and_one_call_per_segment(operators: Operators) -> None:
    case = case_of()
    run(open_request(case, operators), case)
    assert [name for name, _ in CALLS] == ["write", "attend", "attend"] * 4
    causal, full = (given for name, given in CALLS[:3] if name == "attend")
    # The dispatcher leaves out what equals a default.
    assert (causal["sparse_mode"], full.get("sparse_mode", 0)) == (3, 0)
    assert causal["actual_seq_lengths"] == [151, 302]
    assert full["actual_seq_lengths_kv"] == [196, 196]
    assert full["scale"] == 0.125
    # All layers share the mask and the page table.
    assert CALLS[1][1]["atten_mask"] is CALLS[4][1]["atten_mask"]
    assert CALLS[1][1]["block_table"] is CALLS[4][1]["block_table"]


def test_the_form_of_one_row_calls_once_for_each_row(operators: Operators) -> None:
    case = case_of()
    run(open_request(case, operators, "BSH"), case)
    assert [name for name, _ in CALLS] == ["write", *["attend"] * 4] * 4


def test_a_later_step_leaves_the_prefix_pages_alone(operators: Operators) -> None:
    case = case_of(Layout(256, 1, (5, 9), 1))
    request = open_request(case, operators)
    run_step(request, case, first=True)
    kept = [table[:2] for table in request._allocation.page_tables]
    store = request._store
    before = [store.keys[0][list(pages)].clone() for pages in kept]
    run_step(request, case, first=False)
    for pages, keys in zip(kept, before, strict=True):
        assert torch.equal(store.keys[0][list(pages)], keys)


def changed(operators: Operators, change: Callable[[dict[str, Any]], None]) -> Operators:
    """Operators that are called with other arguments."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        change(given)
        return operators.attend(q, k, v, **given)

    return replace(operators, attend=attend)


def to_full(given: dict[str, Any]) -> None:
    given["sparse_mode"] = 0
    given.pop("atten_mask", None)


def to_causal(given: dict[str, Any]) -> None:
    given["sparse_mode"] = 3
    given["atten_mask"] = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


SILENT: dict[str, Callable[[dict[str, Any]], None]] = {
    "scale left out": lambda given: given.pop("scale"),
    "scale of another head size": lambda given: given.update(scale=128**-0.5),
    "causal run as full": to_full,
    "full run as causal": to_causal,
    "a quarter of the keys of a full segment left out": lambda given: given.update(
        actual_seq_lengths_kv=[
            n - n // 4 * (given["sparse_mode"] == 0) for n in given["actual_seq_lengths_kv"]
        ]
    ),
    "rows read one another's pages": lambda given: given.update(
        block_table=given["block_table"].flip(0).contiguous()
    ),
    "pages in another order": lambda given: given.update(
        block_table=given["block_table"].flip(1).contiguous()
    ),
}


@pytest.mark.parametrize("fault", SILENT.values(), ids=SILENT.keys())
def test_a_legal_call_that_means_something_else_is_far_from_the_oracle(
    operators: Operators, fault: Callable[[dict[str, Any]], None]
) -> None:
    case = case_of()
    outputs = run(open_request(case, changed(operators, fault)), case)
    assert not largest_error(outputs, expected(case)) <= 5 * LIMIT


MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def masked(mask: Tensor | None) -> Callable[[dict[str, Any]], None]:
    return lambda given: given["sparse_mode"] and given.update(atten_mask=mask)


ILLEGAL: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "cumulative key lengths": (
        lambda given: given.update(actual_seq_lengths_kv=[151, 302]),
        "block_table",
    ),
    "query lengths per row": (lambda g: g.update(actual_seq_lengths=[151, 151]), "last query"),
    "falling query lengths": (lambda g: g.update(actual_seq_lengths=[302, 151]), "cumulative"),
    "no query lengths": (lambda g: g.pop("actual_seq_lengths"), "both length lists"),
    "no key lengths": (lambda g: g.pop("actual_seq_lengths_kv"), "both length lists"),
    "key lengths on the device": (
        lambda g: g.update(actual_seq_lengths_kv=[g["actual_seq_lengths_kv"][0]]),
        "both lists alike",
    ),
    "more queries than keys": (
        lambda g: g["sparse_mode"] and g.update(actual_seq_lengths_kv=[150, 150]),
        "queries over",
    ),
    "no mask for a causal segment": (masked(None), "needs the mask"),
    "a mask of the lengths": (masked(torch.ones(151, 151).triu(1).to(torch.int8)), "mask of"),
    "an inverted mask": (masked(1 - MASK), "above the diagonal"),
    "a mask of floats": (masked(MASK.float()), "mask of torch.float32"),
    "a mask for a full segment": (
        lambda g: g.update(atten_mask=MASK, sparse_mode=0),
        "takes no mask",
    ),
    "mode 1": (lambda g: g.update(sparse_mode=1), "sparse_mode 1"),
    "mode 2": (lambda g: g.update(sparse_mode=2), "sparse_mode 2"),
    "pages of 16": (lambda g: g.update(block_size=16), "block_size 16"),
    "block_size left out": (lambda g: g.pop("block_size"), "block_size 0"),
    "int64 page table": (lambda g: g.update(block_table=g["block_table"].long()), "int32"),
    "no page table": (lambda g: g.pop("block_table"), "need block_table"),
    "page ids past the pool": (lambda g: g.update(block_table=g["block_table"] + 11), "page id"),
    "heads left out": (lambda g: g.pop("num_heads"), "num_heads"),
    "kv heads left out": (lambda g: g.pop("num_key_value_heads"), "3-D pages"),
    "layout left out": (lambda g: g.pop("input_layout"), "BSH"),
    "an argument of other forms": (lambda g: g.update(softmax_lse_flag=True), "nothing uses"),
}


@pytest.mark.parametrize(("fault", "said"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_a_wrong_read_is_refused(
    operators: Operators, fault: Callable[[dict[str, Any]], None], said: str
) -> None:
    case = case_of()
    with pytest.raises(ContractError, match=said):
        run_step(open_request(case, changed(operators, fault)), case, first=True)


READ_TENSORS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]], str]] = {
    "pages as they are written": (lambda q, k, v: (q, *map(four_axes, (k, v))), "4-D pages"),
    "rows of padding": (lambda q, k, v: (torch.cat((q, q[:1])), k, v), "last query length"),
    "float32 queries": (lambda q, k, v: (q.float(), k, v), "bfloat16"),
    "queries that are not contiguous": (
        lambda q, k, v: (q.transpose(0, 1).contiguous().transpose(0, 1), k, v),
        "contiguous",
    ),
    "a pool that counts shared pages once": (lambda q, k, v: (q, k[:3], v[:3]), "shared or not"),
}


def four_axes(pages: Tensor) -> Tensor:
    return pages.unflatten(-1, (HEADS.num_kv_heads, HEADS.head_dim))


@pytest.mark.parametrize(("fault", "said"), READ_TENSORS.values(), ids=READ_TENSORS.keys())
def test_wrong_tensors_are_refused(
    operators: Operators, fault: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]], said: str
) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        return operators.attend(*fault(q, k, v), **given)

    case = case_of()
    with pytest.raises(ContractError, match=said):
        run_step(open_request(case, replace(operators, attend=attend)), case, first=True)


WRITES: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "cache_mode left out": (lambda arguments: arguments[5].clear(), "ND pages are Norm"),
    "two tokens for one slot": (lambda arguments: arguments[4].fill_(7), "two tokens"),
    "a slot past the pool": (lambda arguments: arguments[4].add_(11 * 128), "out of range"),
    "a slot before the pool": (lambda arguments: arguments[4].sub_(11 * 128), "out of range"),
    "a slice of the projection": (
        lambda arguments: arguments.__setitem__(1, spread(arguments[1])),
        "contiguous",
    ),
    "rows and tokens apart": (
        lambda arguments: arguments.__setitem__(0, arguments[0].view(2, -1, 2, 64)),
        r"\[T, K, D\]",
    ),
}


def spread(x: Tensor) -> Tensor:
    return torch.stack((x, x), dim=-2)[..., 0, :]


@pytest.mark.parametrize(("fault", "said"), WRITES.values(), ids=WRITES.keys())
def test_a_wrong_write_is_refused(
    operators: Operators, fault: Callable[[list[Any]], None], said: str
) -> None:
    def write(*tensors: Tensor, **given: Any) -> None:
        arguments = [*tensors, given]
        fault(arguments)
        operators.write(*arguments[:5], **arguments[5])

    case = case_of()
    with pytest.raises(ContractError, match=said):
        run_step(open_request(case, replace(operators, write=write)), case, first=True)
