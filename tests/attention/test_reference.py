"""The CPU reference kernel, over pages and over contiguous rows, against the mask oracle."""

from __future__ import annotations

import pytest
import torch
from attention_cases import (
    CPU,
    Heads,
    allocate,
    equal,
    expected,
    largest_error,
    make_case,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.attention import oracle
from kit.attention.base import StepKV
from kit.attention.dense import DenseKV
from kit.attention.kernel import PageTables
from kit.attention.paged import PagedKV
from kit.attention.plan import Segment, StepPlan
from kit.attention.reference import K_TILE, tile_plan
from kit.attention.reference_dense import DenseReference
from kit.attention.reference_paged import PagedReference
from kit.attention.rotary import QKNorm, Rotary
from kit.attention.torch_sdpa import TorchSDPA
from kit.kv.store import DenseStore, KVShape, PagedStore
from kit.tokenizer.layout import Layout

LAYOUTS = st.builds(
    Layout,
    prefix_len=st.integers(1, 300),
    num_special=st.sampled_from((1, 3)),
    grid=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    tail_len=st.just(2),
)
HEADS = st.builds(
    Heads,
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_dim=st.sampled_from((4, 16, 32)),
)
PAGE_SIZES = (1, 16, 128, 176, 1024)


@settings(max_examples=60, deadline=None)
@given(
    layout=LAYOUTS,
    num_rows=st.integers(1, 2),
    heads=HEADS,
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    page_size=st.one_of(st.sampled_from(PAGE_SIZES), st.integers(1, 600)),
    seed=st.integers(0, 2**31),
)
def test_kernels_against_oracle(
    layout: Layout, num_rows: int, heads: Heads, dtype: torch.dtype, page_size: int, seed: int
) -> None:
    case = make_case(layout, num_rows=num_rows, heads=heads, dtype=dtype, seed=seed)
    num_pages = num_rows * -(-layout.kv_len // page_size) + 3
    allocation = allocate(
        layout, num_rows=num_rows, page_size=page_size, num_pages=num_pages, seed=seed
    )
    store = PagedStore(case.shape, num_pages, page_size)
    paged = run(
        PagedKV("FLASH_ATTN", store, PagedReference()).open(layout, num_rows, allocation), case
    )
    dense = run(
        DenseKV("FLASH_ATTN", case.shape, DenseReference()).open(layout, num_rows, None), case
    )
    sdpa = run(DenseKV("TORCH_SDPA", case.shape, TorchSDPA()).open(layout, num_rows, None), case)

    assert equal(paged, dense), "paged and dense FLASH_ATTN must agree bit for bit"
    # bfloat16: outputs are rounded to 8 bits, and q, k before them may round another way.
    limit = 1e-5 if dtype == torch.float32 else 0.04
    wanted = expected(case)
    assert largest_error(paged, wanted) <= limit
    assert largest_error(sdpa, wanted) <= limit
    assert largest_error(sdpa, paged) <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_bits_do_not_depend_on_page_size(page_size: int, dtype: torch.dtype) -> None:
    layout = Layout(prefix_len=137, num_special=3, grid=(15, 17), tail_len=1)
    case = make_case(layout, heads=Heads(4, 2, 32), dtype=dtype)
    num_pages = 2 * -(-layout.kv_len // page_size)
    allocation = allocate(layout, page_size=page_size, num_pages=num_pages)
    store = PagedStore(case.shape, num_pages, page_size)
    paged = run(PagedKV("FLASH_ATTN", store, PagedReference()).open(layout, 2, allocation), case)
    dense = run(DenseKV("FLASH_ATTN", case.shape, DenseReference()).open(layout, 2, None), case)
    assert equal(paged, dense)


BOUNDARY_LENGTHS = sorted(
    {1, 2} | {edge + delta for edge in (16, 32, K_TILE, 2 * K_TILE) for delta in (-1, 0, 1)}
)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("page_size", [1, 16, K_TILE, 1000])
@pytest.mark.parametrize("kv_len", BOUNDARY_LENGTHS)
def test_lengths_at_page_and_tile_boundaries(kv_len: int, page_size: int, causal: bool) -> None:
    K, G, D = 2, 3, 8
    generator = torch.Generator().manual_seed(kv_len)
    shape = KVShape(1, K, D, torch.float32, CPU)
    pages = -(-kv_len // page_size)
    ids = torch.randperm(2 * pages, generator=generator).view(2, pages)
    qkv = torch.randn(2, kv_len, K, G + 2, D, generator=generator)
    visible = torch.ones(kv_len, kv_len, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    for start in {0, kv_len // 2, kv_len - 1}:
        whole = StepPlan(0, (Segment(0, kv_len, causal=True),))
        part = StepPlan(start, (Segment(start, kv_len, causal=causal),))
        store, dense = PagedStore(shape, 2 * pages, page_size), DenseStore.take(shape, 2, kv_len)
        tables = PageTables(ids.int(), page_size)
        outputs = []
        for writer, reader in (
            (
                PagedReference().step(store, tables, whole),
                PagedReference().step(store, tables, part),
            ),
            (DenseReference().step(dense, whole), DenseReference().step(dense, part)),
            (TorchSDPA().step(dense, whole), TorchSDPA().step(dense, part)),
        ):
            q = _write_unrotated(writer, qkv)
            outputs.append(reader.attend(0, q[:, start:]))
        wanted = oracle.attend(q[:, start:], dense.keys[0], qkv[..., -1, :], visible[start:])
        assert torch.equal(outputs[0], outputs[1])
        for output in outputs:
            torch.testing.assert_close(output, wanted, rtol=0, atol=1e-5)


def test_tiles_that_a_causal_query_cannot_see_are_skipped() -> None:
    plan = StepPlan(100, (Segment(100, 300, causal=True), Segment(300, 310, causal=False)))
    causal, full = tile_plan(plan)
    assert [(t.start, t.stop, t.first_query) for t in causal.tiles] == [
        (0, 128, 0),
        (128, 256, 28),
        (256, 300, 156),
    ]
    assert [(t.start, t.stop, t.first_query) for t in full.tiles] == [
        (0, 128, 0),
        (128, 256, 0),
        (256, 310, 0),
    ]
    assert all(tile.hidden is None for tile in full.tiles)
    # Queries 100..126 miss keys of the first tile; from 127 on it is whole.
    assert [len(tile.hidden) for tile in causal.tiles if tile.hidden is not None] == [27, 127, 43]


def test_large_scores_stay_finite() -> None:
    """Scores of thousands: the running maximum must keep exp2 from overflowing."""
    layout = Layout(prefix_len=150, num_special=1, grid=(10, 10), tail_len=0)
    case = make_case(layout)
    loud = tuple(QKNorm(n.query_weight * 100, n.key_weight * 100, n.eps) for n in case.norms)
    case = type(case)(**{**vars(case), "norms": loud})
    outputs = run(DenseKV("FLASH_ATTN", case.shape, DenseReference()).open(layout, 2, None), case)
    # Softmax is close to one-hot here: a rounding of the scores moves it by more than 1e-5.
    assert largest_error(outputs, expected(case)) <= 1e-2


def _write_unrotated(step: StepKV, qkv: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(qkv.shape[1], qkv.shape[-1])
    return step.write(0, qkv, Rotary(ones, torch.zeros_like(ones)), QKNorm(ones[0], ones[0], 1e-5))
