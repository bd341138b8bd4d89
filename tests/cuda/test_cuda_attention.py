"""FlashAttention over pages and rows on a card: lengths, poison, NaN, every dense backend."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from attention_cases import Case, Heads, allocate, equal, expected, make_case, run, run_step
from reuse_cases import check_reuse
from torch import Tensor

from kit.attention.cuda.build import FlashBuild, find_flash_build
from kit.attention.dense import DenseKV
from kit.attention.kernel import DenseKernel
from kit.attention.paged import PagedKV
from kit.attention.torch_sdpa import TorchCuDNN, TorchSDPA
from kit.kv.store import PagedStore
from kit.tokenizer.layout import Layout, ReferenceSpan

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")
HEADS = Heads(num_kv_heads=2, group=4, head_dim=128)
PAGE_SIZE = 176
LIMIT = 5e-3


def flash_build() -> FlashBuild:
    build = find_flash_build(torch.cuda.get_device_capability())
    assert isinstance(build, FlashBuild)
    assert build.kernel == "flash_attn_3"
    return build


def card_case(layout: Layout, seed: int = 0) -> Case:
    return make_case(layout, heads=HEADS, dtype=torch.bfloat16, seed=seed).to(CUDA)


def paged(store: PagedStore, longest: int) -> PagedKV:
    from kit.attention.cuda.flash import FlashPaged

    return PagedKV("FLASH_ATTN", store, FlashPaged(flash_build(), longest))


def dense_kernel(name: str) -> DenseKernel:
    from kit.attention.cuda.flash import FlashDense

    return FlashDense(flash_build()) if name == "FLASH_ATTN" else _TORCH[name]()


_TORCH: dict[str, type[DenseKernel]] = {"TORCH_SDPA": TorchSDPA, "CUDNN_ATTN": TorchCuDNN}


def relative(seen: Tensor, wanted: Tensor) -> float:
    return float((seen.double() - wanted.double()).norm() / wanted.double().norm())


def layout_of(length: int) -> Layout:
    """A row of `length` tokens: 42 of the image, one special, the rest prefix.

    FlashAttention 3 reads pages by another tile where queries times heads of a group are at most
    128, so an image of 32 tokens or less would not have the bits of rows.
    """
    return Layout(length - 43, 1, (6, 7), tail_len=1)


@pytest.mark.parametrize(
    "length", [PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE, 2 * PAGE_SIZE + 1, 60]
)
def test_poison_never_reaches_a_result_at_any_length(length: int) -> None:
    """Foreign pages and own slots full of NaN before the request: the bits of clean ones."""
    layout = layout_of(length)
    case = card_case(layout)
    num_pages = 2 * -(-length // PAGE_SIZE) + 3
    allocation = allocate(layout, page_size=PAGE_SIZE, num_pages=num_pages)
    outputs = []
    for poison in (0.0, math.nan):
        store = PagedStore(case.shape, num_pages, PAGE_SIZE)
        for tensor in store.keys + store.values:
            tensor.fill_(poison)
        outputs.append(run(paged(store, length).open(layout, 2, allocation), case))
    rows = DenseKV("FLASH_ATTN", case.shape, dense_kernel("FLASH_ATTN"))
    assert equal(*outputs)
    assert equal(outputs[0], run(rows.open(layout, 2, None), case))
    for seen, wanted in zip(outputs[0], expected(case), strict=True):
        assert relative(seen, wanted) < LIMIT


def test_a_request_driven_to_nan_leaves_nothing_behind() -> None:
    layout = layout_of(300)
    case, num_pages = card_case(layout), 6
    allocation = allocate(layout, page_size=PAGE_SIZE, num_pages=num_pages)
    store = PagedStore(case.shape, num_pages, PAGE_SIZE)
    backend = paged(store, 300)
    clean = run(backend.open(layout, 2, allocation), case)
    broken = replace(case, first=tuple(qkv * math.nan for qkv in case.first))
    request = backend.open(layout, 2, allocation)
    assert bool(run_step(request, broken, first=True).isnan().all())
    request.scrub()
    assert all(bool(tensor.isfinite().all()) for tensor in store.keys + store.values)
    assert equal(run(backend.open(layout, 2, allocation), case), clean)


@pytest.mark.parametrize("name", ["FLASH_ATTN", *_TORCH])
@pytest.mark.parametrize("side", [32, 64])
def test_every_dense_backend_against_explicit_softmax(name: str, side: int) -> None:
    """1025 and 4097 target tokens: kernels were seen to lose the last row at such lengths."""
    layout = Layout(37, 1, (side, side), tail_len=1)
    case = card_case(layout)
    backend = DenseKV(name, case.shape, dense_kernel(name))
    outputs = run(backend.open(layout, 2, None), case)
    for step, seen, wanted in zip(("first", "later"), outputs, expected(case), strict=True):
        assert relative(seen, wanted) < LIMIT, step
        assert relative(seen[:, :, -1], wanted[:, :, -1]) < 2 * LIMIT, f"last row, {step}"
        if step == "later":
            assert relative(seen[:, :, 0], wanted[:, :, 0]) < 2 * LIMIT, "special row"


@pytest.mark.parametrize("name", ["FLASH_ATTN", *_TORCH])
@pytest.mark.parametrize("text", [5, 40])
def test_references_in_a_prefix(name: str, text: int) -> None:
    """Full segments within the prefix, causal ones of few and of more tokens between them."""
    first = ReferenceSpan(timestep=9, latent_grid=(20, 30), patch_grid=(8, 9), num_patch_tokens=100)
    second = replace(first, timestep=first.end + text)
    layout = Layout(second.end + text, 1, (20, 20), tail_len=1, references=(first, second))
    case = card_case(layout)
    rows = DenseKV(name, case.shape, dense_kernel(name)).open(layout, 2, None)
    outputs = run(rows, case)
    for seen, wanted in zip(outputs, expected(case), strict=True):
        assert relative(seen, wanted) < LIMIT
    if name != "FLASH_ATTN":
        return
    num_pages = 2 * -(-layout.kv_len // PAGE_SIZE) + 3
    allocation = allocate(layout, page_size=PAGE_SIZE, num_pages=num_pages)
    store = PagedStore(case.shape, num_pages, PAGE_SIZE)
    assert equal(run(paged(store, layout.kv_len).open(layout, 2, allocation), case), outputs)


@pytest.mark.parametrize(
    ("cached", "shared"), [(0, 0), (0, 400), (0, 600), (176, 600), (528, 400), (528, 600)]
)
def test_first_steps_with_reuse(cached: int, shared: int) -> None:
    """The reference ends behind the second page; common tokens end inside of one."""
    from kit.attention.cuda.flash import FlashPaged

    reference = ReferenceSpan(2, latent_grid=(18, 17), patch_grid=(9, 8), num_patch_tokens=80)
    layout = Layout(700, 1, (16, 16), tail_len=1, references=(reference,))
    kernel = FlashPaged(flash_build(), layout.kv_len)
    # FlashAttention 3 weighs the values behind a row's end with 0, so NaN would count there.
    check_reuse(kernel, card_case(layout), PAGE_SIZE, cached, shared, LIMIT, stale=1e4)
