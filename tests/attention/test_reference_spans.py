"""Reference images in a prefix: more segments of a first step. Ascend: test_fia.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from attention_cases import Case, allocate, equal, expected, largest_error, make_case, run
from attention_cases import run_step as run_one_step

from kit.attention.dense import DenseKV
from kit.attention.kernel import DenseKernel
from kit.attention.paged import PagedKV
from kit.attention.plan import Segment, StepPlan, plan_step
from kit.attention.reference_dense import DenseReference
from kit.attention.reference_paged import PagedReference
from kit.attention.torch_sdpa import TorchSDPA
from kit.kv.store import PagedStore
from kit.tokenizer.layout import Layout, ReferenceSpan

# Spans [11, 151) and [156, 185): one longer than a tile of keys, one within it; padding in both.
FIRST = ReferenceSpan(timestep=10, latent_grid=(9, 13), patch_grid=(4, 5), num_patch_tokens=22)
SECOND = ReferenceSpan(timestep=155, latent_grid=(4, 5), patch_grid=(2, 3), num_patch_tokens=8)
LAYOUT = Layout(201, 1, (5, 8), tail_len=2, references=(FIRST, SECOND))
PAGE_SIZES = (1, 16, 37, 128, 512)
SEEN = 1e-3
"""An error at least this large turns a comparison with the limit 1e-5 red."""


def run_paged(case: Case, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every slot that the request does not own holds NaN."""
    num_pages = 2 * -(-LAYOUT.kv_len // page_size) + 3
    store = PagedStore(case.shape, num_pages, page_size)
    for tensor in store.keys + store.values:
        tensor.fill_(math.nan)
    allocation = allocate(LAYOUT, page_size=page_size, num_pages=num_pages)
    return run(PagedKV("FLASH_ATTN", store, PagedReference()).open(LAYOUT, 2, allocation), case)


def run_dense(case: Case, kernel: Callable[[], DenseKernel]) -> tuple[torch.Tensor, torch.Tensor]:
    return run(DenseKV("FLASH_ATTN", case.shape, kernel()).open(LAYOUT, 2, None), case)


def test_a_first_step_has_two_segments_more_for_each_reference() -> None:
    assert plan_step(LAYOUT, first=True).segments == (
        Segment(0, 11, causal=True),
        Segment(11, 151, causal=False),
        Segment(151, 156, causal=True),
        Segment(156, 185, causal=False),
        Segment(185, 202, causal=True),
        Segment(202, 242, causal=False),
    )


def test_a_later_step_is_that_of_a_row_without_references() -> None:
    without = replace(LAYOUT, references=())
    assert plan_step(LAYOUT, first=False) == plan_step(without, first=False)


@pytest.mark.parametrize("kernel", [DenseReference, TorchSDPA])
def test_contiguous_rows_against_the_oracle(kernel: type[DenseKernel]) -> None:
    case = make_case(LAYOUT)
    assert largest_error(run_dense(case, kernel), expected(case)) <= 1e-5


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_pages_have_the_bits_of_contiguous_rows(page_size: int) -> None:
    case = make_case(LAYOUT)
    paged = run_paged(case, page_size)
    assert largest_error(paged, expected(case)) <= 1e-5
    assert equal(paged, run_dense(case, DenseReference))


def causal_only(layout: Layout) -> StepPlan:
    return plan_step(replace(layout, references=()), first=True)


def without_separator(layout: Layout) -> StepPlan:
    """Latents and patches apart, as `cond_token_attn_type: full` would have it."""
    segments: list[Segment] = []
    at = 0
    for ref in layout.references:
        segments += [
            Segment(at, ref.start, causal=True),
            Segment(ref.start, ref.latents.end, causal=False),
            Segment(ref.latents.end, ref.patches.start, causal=True),
            Segment(ref.patches.start, ref.end, causal=False),
        ]
        at = ref.end
    image = layout.image_span
    segments += [Segment(at, image.start, causal=True)]
    return StepPlan(0, (*segments, Segment(image.start, image.end, causal=False)))


def moved_by_one(layout: Layout) -> StepPlan:
    """The span begins at the timestep of the reference."""
    moved = tuple(replace(ref, timestep=ref.timestep - 1) for ref in layout.references)
    return plan_step(replace(layout, references=moved), first=True)


def spans_as_one(layout: Layout) -> StepPlan:
    """The first reference sees the second."""
    plan = plan_step(layout, first=True)
    head, first, _, second, *rest = plan.segments
    joined = Segment(first.start, second.end, causal=False)
    return StepPlan(0, (head, joined, *rest))


@pytest.mark.parametrize("fault", [causal_only, without_separator, moved_by_one, spans_as_one])
def test_a_wrong_plan_is_seen(fault: Callable[[Layout], StepPlan]) -> None:
    case = make_case(LAYOUT)
    kv = DenseKV("FLASH_ATTN", case.shape, DenseReference()).open(LAYOUT, 2, None)
    seen = run_one_step(kv, case, first=True, plan=fault(LAYOUT))
    assert (seen - expected(case)[0]).abs().max() >= SEEN
