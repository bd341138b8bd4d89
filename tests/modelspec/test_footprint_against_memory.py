"""The estimated working memory against what the model really allocates on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from allocations import peak_bytes

from kit.attention.reference import K_TILE
from kit.attention.registry import create_backend
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, GOLDEN_CHECKPOINT
from kit.kv.allocation import KVAllocation
from kit.messages import RunRequest
from kit.model.transformer import HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.model.vae_encoder import VAEEncoder
from kit.modelspec.config import ModelConfig, load_model_config
from kit.modelspec.footprint import activation_bytes, num_pages, weight_bytes
from kit.pipeline.denoise import DenoiseLoop
from kit.request import ResolvedSampling
from kit.tokenizer.layout import Layout, Rows

PAGE_SIZE = K_TILE


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


def random_weights(module: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)


def in_dtype(network: HunyuanImage3, dtype: torch.dtype) -> HunyuanImage3:
    """Convert as the loader does: routers stay float32."""
    network.to(dtype)
    for name, module in network.named_modules():
        if name.endswith(".wg"):
            module.float()
    return network


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("distilled", [False, True])
def test_weights(model: ModelConfig, dtype: torch.dtype, distilled: bool) -> None:
    model = replace(model, cfg_distilled=distilled, use_meanflow=distilled)
    modules = in_dtype(HunyuanImage3(model), dtype), VAEDecoder(model.vae)
    held = sum(p.numel() * p.element_size() for m in modules for p in m.parameters())
    assert weight_bytes(model, dtype.itemsize) == held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prefix_len", [20, 300])
@pytest.mark.parametrize("wide_experts", [False, True])
@torch.inference_mode()
def test_first_step(
    model: ModelConfig, dtype: torch.dtype, prefix_len: int, wide_experts: bool
) -> None:
    if wide_experts:
        model = replace(model, hidden_size=256, moe_intermediate_size=(600,) * 3)
    network = HunyuanImage3(model)
    random_weights(network)
    in_dtype(network, dtype)
    layout = Layout(prefix_len, model.num_special, grid=(16, 16), tail_len=1)
    pages = num_pages(layout.kv_len, PAGE_SIZE)
    backend = create_backend(
        device=torch.device("cpu"),
        kv_mode="paged_scheduler",
        name="FLASH_ATTN",
        model=model,
        dtype=dtype,
        page_size=PAGE_SIZE,
        num_pages=2 * pages,
    )
    tables = (tuple(range(pages)), tuple(range(pages, 2 * pages)))
    allocation = KVAllocation("r", 1, tables, layout.kv_len, PAGE_SIZE)
    rows = Rows(layout, ((5,) * layout.seq_len,) * 2)
    sampling = ResolvedSampling(256, 256, 2, 5.0, 3.0, 1)
    run = RunRequest("r", rows, sampling, allocation, None)
    loop = DenoiseLoop(network, backend.open(layout, 2, allocation), run, None)
    estimate = activation_bytes(
        model,
        height=256,
        width=256,
        prefix_len=prefix_len,
        num_rows=2,
        dtype_bytes=dtype.itemsize,
    )
    assert 0.75 <= peak_bytes(loop.step) / estimate.denoise <= 1.2


@pytest.mark.parametrize("folder", [GOLDEN_CHECKPOINT, DEFAULT_CHECKPOINT], ids=["clip", "frame"])
@torch.inference_mode()
def test_encode(folder: Path) -> None:
    model = load_model_config(folder)
    encoder = VAEEncoder(model.vae)
    random_weights(encoder)
    pixels = torch.randn(1, 3, 128, 96)
    estimate = activation_bytes(
        model, height=128, width=96, prefix_len=0, num_rows=1, dtype_bytes=4, reference_hw=(128, 96)
    )
    assert 0.9 <= peak_bytes(lambda: encoder(pixels)) / estimate.encode <= 1.1


@pytest.mark.parametrize("folder", [GOLDEN_CHECKPOINT, DEFAULT_CHECKPOINT], ids=["clip", "frame"])
@torch.inference_mode()
def test_decode(folder: Path) -> None:
    model = load_model_config(folder)
    decoder = VAEDecoder(model.vae)
    random_weights(decoder)
    latents = torch.randn(1, model.vae.latent_channels, 8, 6)
    estimate = activation_bytes(
        model, height=128, width=96, prefix_len=0, num_rows=1, dtype_bytes=4
    )
    assert 0.95 <= peak_bytes(lambda: decoder(latents)) / estimate.decode <= 1.05
