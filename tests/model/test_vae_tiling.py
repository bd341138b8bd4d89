"""Tiled decoding against decoding in one piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.model.loader import load_vae_decoder
from kit.model.vae import VAEDecoder
from kit.model.vae_tiling import OVERLAP, decode_tiled
from kit.modelspec.config import load_model_config
from kit.modelspec.footprint import VAE_TILE


class Enlarge:
    """Stands for a decoder without group norms: a pixel depends on its own latent only."""

    config = SimpleNamespace(ffactor_spatial=4, out_channels=3)
    num_calls = 0

    def __call__(self, latents: Tensor) -> Tensor:
        self.num_calls += 1
        return F.interpolate(latents[:, :3], scale_factor=4.0)


@pytest.mark.parametrize("size", [(24, 24), (25, 24), (64, 64), (24, 90), (45, 46), (10, 70)])
def test_tiles_cover_the_image_and_fade_into_one_another(size: tuple[int, int]) -> None:
    latents = torch.randn(2, 8, *size)
    decoder = Enlarge()
    seen = decode_tiled(cast("VAEDecoder", decoder), latents)
    tiles = [1 + max(0, -(-(side - VAE_TILE) // (VAE_TILE - OVERLAP))) for side in size]
    assert decoder.num_calls == tiles[0] * tiles[1]
    torch.testing.assert_close(seen, decoder(latents), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_the_shipped_decoder_in_tiles_is_close_to_it_in_one_piece() -> None:
    config = load_model_config(DEFAULT_CHECKPOINT)
    decoder = load_vae_decoder(
        DEFAULT_CHECKPOINT, config, device=torch.device("cpu"), dtype=torch.float32
    )
    draw = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, config.vae.latent_channels, 4, 4, generator=draw)
    latents = F.interpolate(coarse, size=(8, 40), mode="bilinear")
    whole, tiled = decoder(latents), decode_tiled(decoder, latents)
    difference = (whole - tiled).abs()
    # Group norms see a tile, so it is not the same; a tile that was left out or moved is far off.
    assert 0 < float(difference.mean()) < 0.1
    assert torch.equal(
        decode_tiled(decoder, latents[..., :VAE_TILE]), decoder(latents[..., :VAE_TILE])
    )
