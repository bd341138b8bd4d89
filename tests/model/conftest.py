"""Numbers and modules of the golden checkpoints; keys and values by the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from golden_cases import GOLDEN
from safetensors.torch import load_file
from torch import Tensor

from kit.attention import oracle
from kit.attention.rotary import QKNorm, Rotary, rotate_and_norm, split_qkv
from kit.model.loader import load_transformer, load_vae_decoder
from kit.model.transformer import DecoderLayer, HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.modelspec.config import (
    PUBLISHED_CONFIG,
    ModelConfig,
    load_model_config,
    parse_model_config,
)

CPU = torch.device("cpu")


class MaskedKV:
    """A StepKV of one pass over whole rows: any boolean mask [T, T], explicit softmax."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask.bool()
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        assert layer not in self.keys, "keys and values are written once per layer"
        q, k, v = split_qkv(qkv)
        q = rotate_and_norm(q, rotary, norm.query_weight, norm.eps)
        k = rotate_and_norm(k, rotary, norm.key_weight, norm.eps)
        self.queries[layer], self.keys[layer], self.values[layer] = q, k, v
        return q

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return oracle.attend(q, self.keys[layer], self.values[layer], self.mask).to(q.dtype)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    """The model runs without autograd, as its caller does it."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def golden() -> dict[str, Tensor]:
    """Inputs and outputs of single modules of the official implementation."""
    return load_file(GOLDEN / "modules.safetensors")


@pytest.fixture(scope="session")
def masked_kv() -> type[MaskedKV]:
    return MaskedKV


@pytest.fixture(scope="session")
def transformer(checkpoint: Path) -> HunyuanImage3:
    config = load_model_config(checkpoint)
    return load_transformer(checkpoint, config, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="session")
def distil_transformer(distil_checkpoint: Path) -> HunyuanImage3:
    config = load_model_config(distil_checkpoint)
    return load_transformer(distil_checkpoint, config, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="session")
def vae_decoder(checkpoint: Path) -> VAEDecoder:
    config = load_model_config(checkpoint)
    return load_vae_decoder(checkpoint, config, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="session")
def golden_layer(transformer: HunyuanImage3) -> DecoderLayer:
    """The layer that the golden numbers of RMS norm, experts, attention and layer belong to."""
    layer = transformer.model.layers[1]
    assert isinstance(layer, DecoderLayer)
    return layer


@pytest.fixture(scope="session")
def official_config() -> ModelConfig:
    """The shape of the published 80B checkpoint."""
    return parse_model_config(json.loads(PUBLISHED_CONFIG.read_text()))
