"""Each attention segment of this device's kernels at a model's head shape, against the oracle."""

from __future__ import annotations

import torch

from kit.attention.registry import create_backend
from kit.attention.segment_check import SegmentError, check_layout, descending_pages
from kit.config.deploy import KVMode
from kit.kv.store import KVShape
from kit.model.rope import rotary_tables
from kit.modelspec.config import ModelConfig
from kit.tokenizer.layout import Layout, ReferenceSpan, positions_yx

RELATIVE_LIMIT = 5e-3


def check_segments(
    model: ModelConfig, kv_mode: KVMode, page_size: int | None, *, device: str, dtype: torch.dtype
) -> list[SegmentError]:
    """Write and read one layer with random values at the model's head shape.

    The layout has a prefix that ends inside a page, a reference image in it, and an image of odd
    sides.
    """
    span = ReferenceSpan(timestep=9, latent_grid=(3, 4), patch_grid=(1, 2), num_patch_tokens=4)
    layout = Layout(37, model.num_special, grid=(13, 11), tail_len=1, references=(span,))
    allocation = None if page_size is None else descending_pages(layout, page_size)
    backend = create_backend(
        device=torch.device(device),
        kv_mode=kv_mode,
        name="FLASH_ATTN",
        model=model,
        dtype=dtype,
        page_size=page_size,
        num_pages=allocation.num_pages if allocation else 0,
    )
    K, D = model.num_key_value_heads, model.attention_head_dim
    shape = KVShape(model.num_hidden_layers, K, D, dtype, torch.device(device))
    positions = positions_yx(layout)[: layout.kv_len]
    return check_layout(
        backend,
        layout,
        allocation,
        shape,
        rotary_tables(positions, D, model.rope_theta, shape.device),
        num_heads=model.num_attention_heads,
        eps=model.rms_norm_eps,
    )
