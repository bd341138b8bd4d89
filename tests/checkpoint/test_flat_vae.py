"""The training's arithmetic against the modules that it takes its parameters from."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kit.checkpoint.flat_vae import FlatVAE, norm_silu
from kit.checkpoint.initial import init_vae
from kit.model.clip_conv import ClipConv3d
from kit.model.vae import VAEDecoder
from kit.model.vae_encoder import VAEEncoder
from kit.modelspec.config import VAEConfig


def config(layers_per_block: int) -> VAEConfig:
    return VAEConfig(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(32, 32, 64),
        layers_per_block=layers_per_block,
        ffactor_spatial=4,
        ffactor_temporal=1,
        scaling_factor=1.5,
        shift_factor=None,
    )


def fill(module: nn.Module) -> None:
    """Random weights in all places, outer slices included: they must not be read."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, ClipConv3d):
                part.weight.normal_(std=part.weight[0].numel() ** -0.5)
                part.bias.normal_(std=0.1)
            if isinstance(part, nn.GroupNorm):
                part.weight.uniform_(0.5, 1.5)
                part.bias.normal_(std=0.2)


@pytest.mark.parametrize("layers_per_block", [0, 1])
def test_flat_vae_against_the_clip_modules(layers_per_block: int) -> None:
    torch.manual_seed(1)
    encoder, decoder = VAEEncoder(config(layers_per_block)), VAEDecoder(config(layers_per_block))
    fill(encoder)
    fill(decoder)
    flat = FlatVAE(encoder, decoder)
    pixels = torch.rand(2, 3, 16, 24) * 2 - 1
    mean, logvar = flat.encode(pixels)
    torch.testing.assert_close(torch.cat((mean, logvar), 1), encoder(pixels), rtol=0, atol=1e-4)
    latents = torch.randn(2, 8, 4, 6)
    decoded = flat.decode(latents / 1.5)
    torch.testing.assert_close(decoded, decoder(latents), rtol=0, atol=1e-4)


def test_norm_silu_against_group_norm() -> None:
    torch.manual_seed(2)
    x, weight, bias = torch.randn(2, 35, 64) * 3 + 2, torch.randn(64), torch.randn(64)
    wanted = F.silu(F.group_norm(x.mT, 32, weight, bias, 1e-6)).mT
    torch.testing.assert_close(norm_silu(x, weight, bias, 32, 1e-6), wanted, rtol=0, atol=1e-5)


def test_the_outer_slices_start_at_zero_and_get_no_gradient() -> None:
    torch.manual_seed(3)
    encoder, decoder = VAEEncoder(config(0)), VAEDecoder(config(0))
    init_vae(encoder)
    init_vae(decoder)
    flat = FlatVAE(encoder, decoder)
    flat.decode(flat.encode(torch.rand(1, 3, 8, 8))[0]).square().sum().backward()
    kernels = [m for vae in (encoder, decoder) for m in vae.modules() if isinstance(m, ClipConv3d)]
    assert any(k.weight.shape[2] == 3 for k in kernels)
    for kernel in kernels:
        if kernel.weight.shape[2] == 3:
            assert kernel.weight.grad is not None
            for outer in (0, 2):
                assert not kernel.weight[:, :, outer].any()
                assert not kernel.weight.grad[:, :, outer].any()
