"""Builds the KV backend that a worker runs, as the capabilities allow."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kit.attention import reference
from kit.attention.ascend.limits import FIA
from kit.attention.base import KVBackend
from kit.attention.capabilities import resolve_kernel, resolve_page_size
from kit.attention.cuda.build import ComputeCapability, FlashBuild, find_flash_build
from kit.attention.dense import DenseKV
from kit.attention.kernel import DenseKernel, PagedKernel
from kit.attention.paged import PagedKV
from kit.attention.reference_dense import DenseReference
from kit.attention.reference_paged import PagedReference
from kit.attention.torch_sdpa import TorchCuDNN, TorchSDPA
from kit.config.deploy import KVMode
from kit.kv.store import KeptRows, KVShape, PagedStore
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import longest_row, most_rows

_DENSE_KERNELS: Mapping[str, type[DenseKernel]] = {
    reference.NAME: DenseReference,
    TorchSDPA.name: TorchSDPA,
    TorchCuDNN.name: TorchCuDNN,
}


def create_backend(
    *,
    device: torch.device,
    kv_mode: KVMode,
    name: str,
    model: ModelConfig,
    dtype: torch.dtype,
    page_size: int | None,
    num_pages: int,
    fixed_addresses: bool = False,
    head_ranks: int = 1,
    row_ranks: int = 1,
) -> KVBackend:
    """Build the store and the kernel of a KV mode; a paged start takes its whole pool now.

    Both are for this rank's heads, of which `head_ranks` ranks have as many each, and for its rows.
    With `fixed_addresses` contiguous rows of all requests lie at one place, as captured graphs want
    them; pages always do. Raises UnsupportedError with the reason if the backend has no kernel for
    the mode on this device (a paged start never gets a dense one), ConfigError for a page size or a
    dtype that it does not take.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    kernel = resolve_kernel(
        name,
        device.type,
        kv_mode,
        dtype=str(dtype).removeprefix("torch."),
        head_dim=model.attention_head_dim,
        compute_capability=capability,
    )
    shape = KVShape(
        num_layers=model.num_hidden_layers,
        num_kv_heads=model.num_key_value_heads // head_ranks,
        head_dim=model.attention_head_dim,
        dtype=dtype,
        device=device,
    )
    num_heads = model.num_attention_heads // head_ranks
    if kv_mode == "dense_legacy":
        kept = None
        if fixed_addresses:
            kept = KeptRows(shape, -(-most_rows(model) // row_ranks), longest_row(model))
        return DenseKV(name, shape, _dense_kernel(kernel, capability, num_heads, shape), kept)
    assert page_size is not None, "the page size is decided before a worker starts"
    assert num_pages > 0, "the pool is sized before a worker starts"
    size = resolve_page_size(
        name,
        device.type,
        head_dim=shape.head_dim,
        requested=page_size,
        compute_capability=capability,
    )
    paged = _paged_kernel(kernel, capability, model, num_heads, shape, num_pages)
    return PagedKV(name, PagedStore(shape, num_pages, size), paged)


# Kernels are imported where they run: torch-npu is installed beside NPUs only, Triton comes with
# CUDA builds of torch only.


def _dense_kernel(
    name: str, capability: ComputeCapability | None, num_heads: int, shape: KVShape
) -> DenseKernel:
    if name in _DENSE_KERNELS:
        return _DENSE_KERNELS[name]()
    if name == FIA:
        from kit.attention.ascend.operators import load_operators
        from kit.attention.ascend.start import open_dense

        return open_dense(load_operators(), shape, num_heads)
    from kit.attention.cuda.flash import FlashDense

    return FlashDense(_flash_build(name, capability))


def _paged_kernel(
    name: str,
    capability: ComputeCapability | None,
    model: ModelConfig,
    num_heads: int,
    shape: KVShape,
    num_pages: int,
) -> PagedKernel:
    if name == reference.NAME:
        return PagedReference()
    if name == FIA:
        from kit.attention.ascend.operators import load_operators
        from kit.attention.ascend.start import open_paged

        return open_paged(load_operators(), shape, num_heads, num_pages)
    from kit.attention.cuda.flash import FlashPaged

    return FlashPaged(_flash_build(name, capability), longest_row(model))


def _flash_build(name: str, capability: ComputeCapability | None) -> FlashBuild:
    assert capability is not None, "flash kernels run on cards"
    build = find_flash_build(capability)
    assert isinstance(build, FlashBuild), "the capabilities named it"
    assert build.kernel == name, "the capabilities named it"
    return build
