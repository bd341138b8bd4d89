"""Builds the KV backend that a worker runs, as the capabilities allow."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kit.attention import reference
from kit.attention.base import KVBackend
from kit.attention.capabilities import resolve_kernel, resolve_page_size
from kit.attention.dense import DenseKV
from kit.attention.kernel import DenseKernel, PagedKernel
from kit.attention.paged import PagedKV
from kit.attention.reference_dense import DenseReference
from kit.attention.reference_paged import PagedReference
from kit.attention.torch_sdpa import TorchSDPA
from kit.config.deploy import KVMode
from kit.kv.store import KVShape, PagedStore
from kit.modelspec.config import ModelConfig

_DENSE_KERNELS: Mapping[str, type[DenseKernel]] = {
    reference.NAME: DenseReference,
    TorchSDPA.name: TorchSDPA,
}
_PAGED_KERNELS: Mapping[str, type[PagedKernel]] = {reference.NAME: PagedReference}


def create_backend(
    *,
    device: torch.device,
    kv_mode: KVMode,
    name: str,
    model: ModelConfig,
    dtype: torch.dtype,
    page_size: int | None,
    num_pages: int,
) -> KVBackend:
    """Build the store and the kernel of a KV mode; a paged start takes its whole pool now.

    Raises UnsupportedError with the reason if the backend has no kernel for the mode on this
    device (a paged start never gets a dense one), ConfigError for a page size it cannot read.
    """
    kernel = resolve_kernel(name, device.type, kv_mode)
    shape = KVShape(
        num_layers=model.num_hidden_layers,
        num_kv_heads=model.num_key_value_heads,
        head_dim=model.attention_head_dim,
        dtype=dtype,
        device=device,
    )
    if kv_mode == "dense_legacy":
        return DenseKV(name, shape, _DENSE_KERNELS[kernel]())
    assert page_size is not None, "the page size is decided before a worker starts"
    assert num_pages > 0, "the pool is sized before a worker starts"
    size = resolve_page_size(name, device.type, head_dim=shape.head_dim, requested=page_size)
    return PagedKV(name, PagedStore(shape, num_pages, size), _PAGED_KERNELS[kernel]())
