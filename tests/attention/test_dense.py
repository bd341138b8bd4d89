"""The dense KV backend: contiguous tensors of one request."""

from __future__ import annotations

import pytest
import torch
from attention_cases import (
    NUM_LAYERS,
    Case,
    allocate,
    expected,
    largest_error,
    make_case,
    run,
    run_step,
)

from kit.attention.base import BackendInfo, KVBackend
from kit.attention.dense import DenseKV, DenseRequest
from kit.attention.kernel import DenseKernel
from kit.attention.reference_dense import DenseReference
from kit.attention.torch_sdpa import TorchSDPA
from kit.errors import KVCacheError
from kit.kv.store import DenseStore
from kit.tokenizer.layout import Layout

LAYOUT = Layout(prefix_len=139, num_special=1, grid=(9, 14), tail_len=2)  # 266 tokens
KERNELS = (DenseReference, TorchSDPA)


@pytest.fixture
def case() -> Case:
    return make_case(LAYOUT)


def test_info_names_what_runs(case: Case) -> None:
    kv: KVBackend = DenseKV("TORCH_SDPA", case.shape, TorchSDPA())
    assert kv.info == BackendInfo("TORCH_SDPA", "torch_sdpa", torch.__version__, None)
    assert kv.pool_bytes == 0


def test_open_refuses_an_allocation(case: Case) -> None:
    kv = DenseKV("FLASH_ATTN", case.shape, DenseReference())
    with pytest.raises(KVCacheError, match="request r1: this worker runs dense_legacy"):
        kv.open(LAYOUT, 2, allocate(LAYOUT, page_size=16, num_pages=40))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_request_holds_its_kv_tokens_and_no_page(case: Case, kernel: type[DenseKernel]) -> None:
    request = DenseKV("FLASH_ATTN", case.shape, kernel()).open(LAYOUT, 2, None)
    K, D = case.heads.num_kv_heads, case.heads.head_dim
    assert request.num_bytes == 2 * NUM_LAYERS * 2 * LAYOUT.kv_len * K * D * 4
    run(request, case)
    assert request.num_paged_calls == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_later_step_writes_the_target_only(case: Case, kernel: type[DenseKernel]) -> None:
    store = DenseStore.take(case.shape, 2, LAYOUT.kv_len)
    request = DenseRequest(store, kernel())
    run_step(request, case, first=True)
    tensors = store.keys + store.values
    before = [(tensor.clone(), tensor._version) for tensor in tensors]
    run_step(request, case, first=False)
    for tensor, (old, version) in zip(tensors, before, strict=True):
        assert tensor._version == version + 1, "one write per layer"
        changed = (tensor != old).flatten(2).any(2)
        assert not bool(changed[:, : LAYOUT.prefix_len].any())
        assert bool(changed[:, LAYOUT.prefix_len :].all())


@pytest.mark.parametrize("kernel", KERNELS)
def test_scrub_zeroes_everything(case: Case, kernel: type[DenseKernel]) -> None:
    store = DenseStore.take(case.shape, 2, LAYOUT.kv_len)
    request = DenseRequest(store, kernel())
    run(request, case)
    assert all(bool(tensor.any()) for tensor in store.keys + store.values)
    request.scrub()
    assert not any(bool(tensor.any()) for tensor in store.keys + store.values)


def test_requests_do_not_share_tensors(case: Case) -> None:
    kv = DenseKV("FLASH_ATTN", case.shape, DenseReference())
    request = kv.open(LAYOUT, 2, None)
    first = run_step(request, case, first=True)
    run(kv.open(LAYOUT, 2, None), make_case(LAYOUT, seed=9))
    outputs = (first, run_step(request, case, first=False))
    assert largest_error(outputs, expected(case)) <= 1e-5


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_caller_that_keeps_gradients_does_not_tie_them_to_the_store(
    case: Case, kernel: type[DenseKernel]
) -> None:
    store = DenseStore.take(case.shape, 2, LAYOUT.kv_len)
    qkv = tuple(tensor.clone().requires_grad_() for tensor in case.first)
    run_step(DenseRequest(store, kernel()), type(case)(**{**vars(case), "first": qkv}), first=True)
    assert not any(tensor.requires_grad for tensor in store.keys + store.values)
