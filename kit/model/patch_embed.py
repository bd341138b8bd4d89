"""Latents to image tokens."""

from __future__ import annotations

from torch import Tensor, nn

from kit.model.resblock import ResBlock
from kit.modelspec.config import ModelConfig


class PatchEmbed(nn.Module):
    """One token per latent pixel, by a convolution and a modulated residual block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels, width = config.vae.latent_channels, config.patch_embed_hidden_dim
        stem = nn.Conv2d(channels, width, 3, padding=1)
        block = ResBlock(width, config.hidden_size, config.hidden_size)
        self.model = nn.ModuleList([stem, block])

    def forward(self, latents: Tensor, emb: Tensor) -> Tensor:
        """Map float32 [B, C, h, w], emb [B or 1, hidden] to row-major tokens [B, h*w, hidden]."""
        stem, block = self.model
        h: Tensor = block(stem(latents.to(emb.dtype)), emb)  # [B, hidden, h, w]
        return h.flatten(2).transpose(1, 2)  # [B, h*w, hidden]
