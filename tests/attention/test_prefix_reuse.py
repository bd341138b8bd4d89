"""First steps that leave out what the pages hold, and run tokens that rows have in common once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import npu_emulation
import pytest
import torch
from attention_cases import (
    Case,
    Heads,
    allocate,
    make_case,
    run_first_passes,
    sharing,
    with_common_tokens,
)
from reuse_cases import NUM_PAGES, check_reuse, open_with

from kit.attention.ascend.fia import FiaPaged
from kit.attention.ascend.operators import load_operators
from kit.attention.plan import Segment, StepPlan, plan_step
from kit.attention.reference_paged import PagedReference
from kit.errors import KVCacheError
from kit.kv.allocation import KVAllocation
from kit.tokenizer.layout import Layout, ReferenceSpan

REFERENCE = ReferenceSpan(timestep=20, latent_grid=(8, 11), patch_grid=(4, 9), num_patch_tokens=40)
PREFIX_LEN = 300
LAYOUT = Layout(PREFIX_LEN, 1, (7, 9), 2, (REFERENCE,))
SPAN_END = REFERENCE.end  # 150
POINTS = (
    # cached, shared, what the case is about
    pytest.param(0, 0, id="nothing"),
    pytest.param(0, 160, id="common-whole-pages"),
    pytest.param(0, 170, id="common-with-a-part-of-a-page"),
    pytest.param(0, SPAN_END + 1, id="common-ends-behind-a-reference"),
    pytest.param(0, PREFIX_LEN, id="common-is-the-prefix"),
    pytest.param(32, 170, id="cached-inside-a-reference"),
    pytest.param(160, 0, id="cached-behind-a-reference"),
    pytest.param(160, 170, id="less-than-a-page-of-common-tokens-left"),
    pytest.param(160, 230, id="cached-and-common"),
    pytest.param(288, 170, id="cached-beyond-the-common-tokens"),
    pytest.param(288, PREFIX_LEN, id="all-whole-pages-cached"),
)


@pytest.mark.parametrize(("cached", "shared"), POINTS)
def test_the_reference_kernel_with_reuse(cached: int, shared: int) -> None:
    check_reuse(PagedReference(), make_case(LAYOUT), 16, cached, shared, 1e-5)


@pytest.mark.parametrize("form", ["TND", "BSH"])
@pytest.mark.parametrize(
    ("cached", "shared"), [(0, 140), (0, 256), (128, 200), (128, 256), (256, 280), (256, 0)]
)
def test_fia_with_reuse(
    cached: int, shared: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    npu_emulation.install(monkeypatch.setitem)
    reference = replace(REFERENCE, timestep=2)  # ends at 132, behind the first page
    layout = replace(LAYOUT, references=(reference,))
    heads = Heads(num_kv_heads=2, group=2, head_dim=64)
    case = make_case(layout, heads=heads, dtype=torch.bfloat16)
    kernel = FiaPaged(load_operators(), 4, form)  # type: ignore[arg-type]
    check_reuse(kernel, case, 128, cached, shared, 5e-3)


@pytest.fixture
def case() -> Case:
    return with_common_tokens(make_case(LAYOUT), 170)


@pytest.fixture
def allocation() -> KVAllocation:
    plain = allocate(LAYOUT, page_size=16, num_pages=NUM_PAGES)
    return sharing(plain, cached=160, shared=170)


def test_what_is_cached_is_read(case: Case, allocation: KVAllocation) -> None:
    seen = []
    for value in (0.0, 1.0):
        request = open_with(PagedReference(), case, allocation)
        cached = [page for table in allocation.page_tables for page in table[:10]]
        for tensor in request.store.keys + request.store.values:
            tensor[cached] = value
        seen.append(run_first_passes(request, case)[-1][1])
    assert not torch.equal(*seen)


def test_scrubbing_leaves_alone_what_others_read(case: Case, allocation: KVAllocation) -> None:
    request = open_with(PagedReference(), case, allocation)
    for tensor in request.store.keys + request.store.values:
        tensor.fill_(5.0)
    request.scrub()
    own = {page for table in allocation.page_tables for page in table[10:]}
    for tensor in request.store.keys + request.store.values:
        assert (tensor[sorted(own)] == 0).all()
        assert (tensor[sorted(set(range(NUM_PAGES)) - own)] == 5).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_cached_tokens": 15}, "num_cached_tokens is 15, the whole pages"),
        ({"num_cached_tokens": 304}, "num_cached_tokens is 304, the whole pages"),
        ({"num_cached_tokens": -16}, "num_cached_tokens is -16"),
        ({"num_shared_tokens": 301}, "num_shared_tokens is 301, the prefix has 300"),
        ({"num_shared_tokens": 176}, "rows share 176 tokens, but not the 11 pages of them"),
        (
            {"num_shared_tokens": 159},
            r"page \d+ appears more than once in page_tables, in rows \[0, 1\]",
        ),
    ],
)
def test_an_allocation_that_shares_wrongly_is_refused(
    case: Case, allocation: KVAllocation, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(KVCacheError, match=message):
        open_with(PagedReference(), case, replace(allocation, **change))


def test_a_full_segment_may_lose_its_beginning_only() -> None:
    plan = plan_step(LAYOUT, first=True)
    tail = Segment(SPAN_END, PREFIX_LEN + 1, causal=True)
    image = Segment(PREFIX_LEN + 1, LAYOUT.kv_len, causal=False)
    inside = StepPlan(100, (Segment(100, SPAN_END, causal=False), tail, image))
    assert plan.between(100, LAYOUT.kv_len) == inside
    assert plan.between(SPAN_END, 200).segments == (Segment(SPAN_END, 200, causal=True),)
    with pytest.raises(AssertionError, match="keeps its end"):
        plan.between(0, 100)
