"""The tensors behind both KV modes."""

from __future__ import annotations

import pytest
import torch

from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.store import DenseStore, KVShape, PagedStore

SHAPE = KVShape(3, 2, 4, torch.bfloat16, torch.device("cpu"))


def filled_pool(page_size: int) -> PagedStore:
    store = PagedStore(SHAPE, 8, page_size)
    for tensor in store.keys + store.values:
        tensor.fill_(1)
    return store


def test_pool_starts_as_zeros() -> None:
    store = PagedStore(SHAPE, 8, 5)
    assert len(store.keys) == len(store.values) == 3
    for tensor in store.keys + store.values:
        assert tensor.shape == (8, 5, 2, 4)
        assert tensor.dtype == torch.bfloat16
        assert not bool(tensor.any())


def test_rows_start_as_zeros() -> None:
    store = DenseStore.take(SHAPE, 2, 7)
    assert len(store.keys) == len(store.values) == 3
    for tensor in store.keys + store.values:
        assert tensor.shape == (2, 7, 2, 4)
        assert tensor.is_contiguous()
        assert not bool(tensor.any())


def test_bytes_are_those_of_the_geometry() -> None:
    geometry = KVGeometry(num_layers=3, num_kv_heads=2, head_dim=4, dtype_bytes=2, page_size=5)
    pool = PagedStore(SHAPE, 8, 5)
    assert pool.page_bytes == geometry.page_bytes
    assert pool.num_bytes == 8 * geometry.page_bytes
    assert DenseStore.take(SHAPE, 2, 7).num_bytes == 2 * 7 * geometry.token_bytes


@pytest.mark.parametrize(
    ("num_tokens", "page_size", "tail"),
    [(1, 1, 0), (2, 1, 0), (1, 4, 3), (3, 4, 1), (4, 4, 0), (5, 4, 3), (5, 100, 95)],
)
def test_zero_tail_zeroes_what_lies_past_the_last_token(
    num_tokens: int, page_size: int, tail: int
) -> None:
    store = filled_pool(page_size)
    pages = -(-num_tokens // page_size)
    tables = (tuple(range(pages)), tuple(range(7, 7 - pages, -1)))
    store.zero_tail(KVAllocation("r", 1, tables, num_tokens, page_size))
    for tensor in store.keys + store.values:
        for page in range(8):
            is_last = page in (tables[0][-1], tables[1][-1])
            used = page_size - tail if is_last else page_size
            assert bool((tensor[page, :used] == 1).all())
            assert bool((tensor[page, used:] == 0).all())


@pytest.mark.parametrize("pages", [[], [3], [0, 7, 2]])
def test_zero_pages_zeroes_those_and_no_other(pages: list[int]) -> None:
    store = filled_pool(5)
    store.zero_pages(iter(pages))
    for tensor in store.keys + store.values:
        zeroed = [page for page in range(8) if not bool(tensor[page].any())]
        assert zeroed == sorted(pages)
        assert bool((tensor[[page for page in range(8) if page not in pages]] == 1).all())


def test_zeroing_overwrites_nan() -> None:
    pool, rows = filled_pool(5), DenseStore.take(SHAPE, 2, 7)
    for tensor in pool.keys + rows.values:
        tensor.fill_(float("nan"))
    pool.zero_pages(range(8))
    rows.zero()
    assert not any(bool(tensor.any()) for tensor in pool.keys + rows.values)
