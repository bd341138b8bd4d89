"""Decoding an image in overlapping tiles: less memory, and not the same pixels.

Group norms and attention of the decoder see a tile in place of the image, so tiles differ a little
where they meet; they fade into one another there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kit.model.vae import VAEDecoder
from kit.modelspec.footprint import VAE_TILE

OVERLAP = 3
"""Latent pixels that neighbouring tiles share: an eighth of a tile, as in the official tiling."""


def decode_tiled(decoder: VAEDecoder, latents: Tensor) -> Tensor:
    """Decode float32 [B, C, h, w] to float32 [B, 3, f*h, f*w], see VAEDecoder.forward.

    Equal to it, bit for bit, where one tile holds the whole image.
    """
    h, w = latents.shape[-2:]
    if max(h, w) <= VAE_TILE:
        whole: Tensor = decoder(latents)
        return whole
    f = decoder.config.ffactor_spatial
    image = latents.new_zeros(len(latents), decoder.config.out_channels, f * h, f * w)
    weight = latents.new_zeros(f * h, f * w)
    for top in _starts(h):
        for left in _starts(w):
            tile = latents[..., top : top + VAE_TILE, left : left + VAE_TILE]
            pixels = decoder(tile)
            fade = torch.outer(
                *(_fade(start, size, f, latents.device) for start, size in ((top, h), (left, w)))
            )
            rows = slice(f * top, f * top + pixels.shape[-2])
            columns = slice(f * left, f * left + pixels.shape[-1])
            image[..., rows, columns] += pixels * fade
            weight[rows, columns] += fade
    return image / weight


def _starts(size: int) -> list[int]:
    """Return where tiles of an axis begin; the last one ends with the axis."""
    last = max(0, size - VAE_TILE)
    return [*range(0, last, VAE_TILE - OVERLAP), last]


def _fade(start: int, size: int, factor: int, device: torch.device) -> Tensor:
    """Return the weights of a tile's pixels along an axis: 1, falling towards its neighbours."""
    length = min(size, VAE_TILE) * factor
    place = torch.arange(length, device=device) + 0.5
    fade = torch.ones(length, device=device)
    band = OVERLAP * factor
    if start > 0:
        fade = torch.minimum(fade, place / band)
    if start + VAE_TILE < size:
        fade = torch.minimum(fade, (length - place) / band)
    return fade
