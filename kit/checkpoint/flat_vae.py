"""The autoencoder of one frame as 2-D convolutions over the same parameters, for training.

With ffactor_temporal 1 only the middle slice of a kernel ever meets a frame. Activations are
[B, C, H, W] in channels-last memory, which GPU convolutions want.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.model.clip_conv import ClipConv3d
from kit.model.vae import Mid, UpLevel, VAEDecoder
from kit.model.vae_blocks import AttnBlock, ResnetBlock
from kit.model.vae_encoder import DownLevel, VAEEncoder, group_mean

NormSilu = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]


def norm_silu(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Return silu(group_norm(x)) of [B, H*W, C], x's dtype; float32 inside.

    Sums run over places first, then over the channels of a group, so that memory is read in order.
    """
    B, _, C = x.shape
    x32 = x.float()
    mean = x32.mean(1).view(B, num_groups, -1).mean(-1)
    square = (x32 * x32).mean(1).view(B, num_groups, -1).mean(-1)
    rstd = torch.rsqrt((square - mean * mean).clamp_min(0) + eps)
    group = C // num_groups
    scale = rstd.repeat_interleave(group, 1) * weight
    shift = bias - mean.repeat_interleave(group, 1) * scale
    return F.silu(x32 * scale[:, None] + shift[:, None]).to(x.dtype)


@dataclass(frozen=True)
class FlatVAE:
    """Encodes and decodes with the parameters of the two modules."""

    encoder: VAEEncoder
    decoder: VAEDecoder
    norm_silu: NormSilu = norm_silu
    """This module's function, or a compiled form of it."""

    def encode(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Encode [B, 3, H, W] in [-1, 1]; returns unscaled mean and log-variance, float32."""
        encoder = self.encoder
        x = conv(encoder.conv_in, pixels.contiguous(memory_format=torch.channels_last))
        for level in encoder.down:
            assert isinstance(level, DownLevel)
            for block in level.block:
                x = self._block(block, x)
            if level.downsample is not None:
                down = level.downsample
                x = fold(conv(down.conv, x)) + group_mean(fold(x), down.group)
        x = self._mid(encoder.mid, x)
        moments = conv(encoder.conv_out, self._norm_silu(encoder.norm_out, x))
        moments = moments + group_mean(x, encoder.group)
        mean, logvar = moments.float().chunk(2, dim=1)
        return mean, logvar.clamp(-30, 20)

    def decode(self, z: Tensor) -> Tensor:
        """Decode unscaled latents [B, C, h, w] to float32 [B, 3, f*h, f*w] around [-1, 1]."""
        decoder = self.decoder
        z = z.contiguous(memory_format=torch.channels_last)
        x = conv(decoder.conv_in, z)
        x = self._mid(decoder.mid, x + z.to(x.dtype).repeat_interleave(decoder.repeats, dim=1))
        for level in decoder.up:
            assert isinstance(level, UpLevel)
            for block in level.block:
                x = self._block(block, x)
            if level.upsample is not None:
                up = level.upsample
                x = unfold(conv(up.conv, x) + x.repeat_interleave(up.repeats, dim=1))
        return conv(decoder.conv_out, self._norm_silu(decoder.norm_out, x)).float()

    def _mid(self, mid: Mid, x: Tensor) -> Tensor:
        x = self._block(mid.block_1, x)
        x = attend(mid.attn_1, x)
        return self._block(mid.block_2, x)

    def _block(self, block: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(block, ResnetBlock)
        h = conv(block.conv1, self._norm_silu(block.norm1, x))
        h = conv(block.conv2, self._norm_silu(block.norm2, h))
        return h + (x if block.nin_shortcut is None else conv(block.nin_shortcut, x))

    def _norm_silu(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        places = x.permute(0, 2, 3, 1).flatten(1, 2)  # [B, H*W, C], a view
        normed = self.norm_silu(places, norm.weight, norm.bias, norm.num_groups, norm.eps)
        return torch.unflatten(normed, 1, x.shape[2:]).permute(0, 3, 1, 2)


def conv(module: ClipConv3d, x: Tensor) -> Tensor:
    """Apply the middle slice of a kernel to [B, C_in, H, W]."""
    kernel = module.weight[:, :, module.reach].contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, kernel, module.bias, padding=module.reach)


def attend(block: AttnBlock, x: Tensor) -> Tensor:
    """Run single-head attention over the places of [B, C, H, W], added to its input."""
    h = block.norm(x)
    q, k, v = (
        conv(module, h).flatten(2).transpose(1, 2).unsqueeze(1)  # [B, 1, H*W, C]
        for module in (block.q, block.k, block.v)
    )
    attended = F.scaled_dot_product_attention(q, k, v)[:, 0]
    places = torch.unflatten(attended.transpose(1, 2), 2, x.shape[2:])
    return x + conv(block.proj_out, places)


def fold(x: Tensor) -> Tensor:
    """Move places of [B, c, 2H, 2W] into channels: [B, (ry rx c), H, W]."""
    B, c, H, W = x.shape
    parts = x.permute(0, 2, 3, 1).reshape(B, H // 2, 2, W // 2, 2, c)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(B, H // 2, W // 2, 4 * c).permute(0, 3, 1, 2)


def unfold(x: Tensor) -> Tensor:
    """Move channels of [B, (ry rx c), H, W] into places: [B, c, 2H, 2W]."""
    B, channels, H, W = x.shape
    parts = x.permute(0, 2, 3, 1).reshape(B, H, W, 2, 2, channels // 4)
    placed = parts.permute(0, 1, 3, 2, 4, 5).reshape(B, 2 * H, 2 * W, channels // 4)
    return placed.permute(0, 3, 1, 2)
