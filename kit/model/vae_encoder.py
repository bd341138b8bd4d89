"""The encoder of the autoencoder: pixels to latents, of reference images and in training.

Clips are [B, C, T, H, W], as in the decoder. Submodule names are the checkpoint's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kit.model.clip_conv import ClipConv3d
from kit.model.group_norm import GroupNorm
from kit.model.vae import Mid
from kit.model.vae_blocks import EPS, ResnetBlock
from kit.modelspec.config import VAEConfig


class Downsample(nn.Module):
    """Half the height and width (and frames), their places folded into channels."""

    def __init__(self, in_channels: int, out_channels: int, *, temporal: bool) -> None:
        super().__init__()
        self.time_factor = 2 if temporal else 1
        factor = 4 * self.time_factor
        self.conv = ClipConv3d(in_channels, out_channels // factor)
        self.group = factor * in_channels // out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C_in, T, H, W] to [B, C_out, T/time_factor, H/2, W/2]."""
        shortcut = group_mean(space_to_depth(x, self.time_factor), self.group)
        out: Tensor = space_to_depth(self.conv(x), self.time_factor) + shortcut
        return out


class DownLevel(nn.Module):
    """Residual blocks at one resolution, then the way to the next one."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            ResnetBlock(in_channels if i == 0 else channels, channels) for i in range(num_blocks)
        )
        self.downsample: Downsample | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C_in, T, H, W] to the next level's clip."""
        for block in self.block:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class VAEEncoder(nn.Module):
    """Turns a clip of ffactor_temporal equal frames into the moments of one latent."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.block_out_channels
        width = widths[0]
        self.conv_in = ClipConv3d(config.in_channels, width)
        self.down = nn.ModuleList()
        for i, level_width in enumerate(widths):
            level = DownLevel(width, level_width, config.layers_per_block)
            width = level_width if config.layers_per_block else width
            if i < config.num_spatial_steps:
                temporal = i >= config.num_spatial_steps - config.num_temporal_steps
                level.downsample = Downsample(width, widths[i + 1], temporal=temporal)
                width = widths[i + 1]
            self.down.append(level)
        self.mid = Mid(width)
        self.norm_out = GroupNorm(width, EPS)
        self.conv_out = ClipConv3d(width, 2 * config.latent_channels)
        self.group = width // (2 * config.latent_channels)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode float32 [B, 3, H, W] in [-1, 1] to moments float32 [B, 2C, H/f, W/f].

        Mean and log-variance side by side along the channels, not yet scaled. The image is
        repeated ffactor_temporal times (HunyuanImage-3.0 reference, `vae_encode`).
        """
        clip = pixels.to(self.conv_in.weight.dtype)[:, :, None]
        x = self.conv_in(clip.expand(-1, -1, self.config.ffactor_temporal, -1, -1))
        for level in self.down:
            x = level(x)
        x = self.mid(x)
        moments: Tensor = self.conv_out(self.norm_out.silu(x)) + group_mean(x, self.group)
        return moments[:, :, 0].float()


def group_mean(x: Tensor, group: int) -> Tensor:
    """Average `group` consecutive channels: [B, C, ...] to [B, C/group, ...]."""
    return torch.unflatten(x, 1, (-1, group)).mean(2)


def space_to_depth(x: Tensor, time_factor: int) -> Tensor:
    """Fold [B, c, T, H, W] into [B, rt*4*c, T/rt, H/2, W/2], channels ordered [(rt ry rx c)].

    The inverse of `kit.model.vae_blocks.depth_to_space`.
    """
    B, c, T, H, W = x.shape
    parts = x.reshape(B, c, T // time_factor, time_factor, H // 2, 2, W // 2, 2)
    folded = parts.permute(0, 3, 5, 7, 1, 2, 4, 6)  # [B, rt, ry, rx, c, T, H, W]
    return folded.reshape(B, -1, T // time_factor, H // 2, W // 2)
