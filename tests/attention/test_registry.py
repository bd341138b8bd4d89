"""What a worker gets for its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attention_cases import CPU

from kit.attention.dense import DenseKV
from kit.attention.paged import PagedKV
from kit.attention.registry import create_backend
from kit.errors import ConfigError, UnsupportedError
from kit.kv.geometry import KVGeometry
from kit.modelspec.config import ModelConfig, load_model_config


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


def settings(model: ModelConfig, **changes: Any) -> dict[str, Any]:
    paged = {"kv_mode": "paged_scheduler", "name": "FLASH_ATTN", "page_size": 16, "num_pages": 20}
    return {"device": CPU, "model": model, "dtype": torch.bfloat16} | paged | changes


def test_paged(model: ModelConfig) -> None:
    kv = create_backend(**settings(model))
    assert isinstance(kv, PagedKV)
    assert (kv.info.name, kv.info.kernel, kv.info.page_size) == ("FLASH_ATTN", "cpu_reference", 16)
    geometry = KVGeometry(
        num_layers=model.num_hidden_layers,
        num_kv_heads=model.num_key_value_heads,
        head_dim=model.attention_head_dim,
        dtype_bytes=2,
        page_size=16,
    )
    assert kv.pool_bytes == 20 * geometry.page_bytes


@pytest.mark.parametrize(
    ("name", "kernel"), [("FLASH_ATTN", "cpu_reference"), ("TORCH_SDPA", "torch_sdpa")]
)
def test_dense(model: ModelConfig, name: str, kernel: str) -> None:
    kv = create_backend(
        **settings(model, kv_mode="dense_legacy", name=name, page_size=None, num_pages=0)
    )
    assert isinstance(kv, DenseKV)
    assert (kv.info.name, kv.info.kernel, kv.info.page_size) == (name, kernel, None)


@pytest.mark.parametrize("name", ["TORCH_SDPA", "CUDNN_ATTN", "SAGE_ATTN"])
def test_a_paged_start_is_never_dense(model: ModelConfig, name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        create_backend(**settings(model, name=name))


def test_an_unreadable_page_size_is_refused(model: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="diffusion_kv_page_size"):
        create_backend(**settings(model, page_size=0))
