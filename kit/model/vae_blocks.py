"""Building blocks of the autoencoder. Submodule names are the checkpoint's.

Clips are [B, C, T, H, W], H the rows of this rank; group norm and attention couple all frames of a
clip, and the rows of all ranks.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from kit.model.clip_conv import ClipConv3d
from kit.model.group_norm import GroupNorm
from kit.parallel.strips import ALL_ROWS, Strips

EPS = 1e-6  # The transformer's group norms take 1e-5.


class ResnetBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))), x through a 1x1x1 shortcut if widths differ."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = GroupNorm(in_channels, EPS)
        self.conv1 = ClipConv3d(in_channels, out_channels)
        self.norm2 = GroupNorm(out_channels, EPS)
        self.conv2 = ClipConv3d(out_channels, out_channels)
        self.nin_shortcut = (
            None if in_channels == out_channels else ClipConv3d(in_channels, out_channels, 1)
        )

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C_in, T, H, W] to [B, C_out, T, H, W]."""
        h = self.conv1(self.norm1.silu(x, strips), strips)
        h = self.conv2(self.norm2.silu(h, strips), strips)
        out: Tensor = h + (x if self.nin_shortcut is None else self.nin_shortcut(x))
        return out


class AttnBlock(nn.Module):
    """Single-head attention over all places of all frames, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = GroupNorm(channels, EPS)
        self.q, self.k, self.v, self.proj_out = (
            ClipConv3d(channels, channels, 1) for _ in range(4)
        )

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C, T, H, W] to the same shape; scale 1/sqrt(C)."""
        own = self.norm(x, strips)
        # Half of what keys and values would be; every rank computes these of all rows.
        everywhere = strips.gather_rows(own)
        q, k, v = (
            # [B, C, T, H, W] -> [B, 1, T*H*W, C]; four axes, as the fused kernels want them
            conv(h).flatten(2).transpose(1, 2).unsqueeze(1)
            for conv, h in ((self.q, own), (self.k, everywhere), (self.v, everywhere))
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.proj_out(attended[:, 0].transpose(1, 2).reshape(x.shape))
        return out


class Upsample(nn.Module):
    """Twice the height and width (and frames), channels folded into the new places."""

    def __init__(self, in_channels: int, out_channels: int, *, temporal: bool) -> None:
        super().__init__()
        self.time_factor = 2 if temporal else 1
        factor = 4 * self.time_factor
        self.conv = ClipConv3d(in_channels, out_channels * factor)
        self.repeats = out_channels * factor // in_channels

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C_in, T, H, W] to [B, C_out, T*time_factor, 2H, 2W]."""
        h = depth_to_space(self.conv(x, strips), self.time_factor)
        return h + depth_to_space(x.repeat_interleave(self.repeats, dim=1), self.time_factor)


def depth_to_space(x: Tensor, time_factor: int) -> Tensor:
    """Move channels [(rt ry rx c)] of [B, rt*4*c, T, H, W] into [B, c, T*rt, 2H, 2W].

    The temporal sub-index is slowest, the remaining channel fastest (HunyuanImage-3.0 reference,
    `UpsampleDCAE`).
    """
    B, channels, T, H, W = x.shape
    c = channels // (4 * time_factor)
    parts = x.reshape(B, time_factor, 2, 2, c, T, H, W)
    placed = parts.permute(0, 4, 5, 1, 6, 2, 7, 3)  # [B, c, T, rt, H, ry, W, rx]
    return placed.reshape(B, c, T * time_factor, 2 * H, 2 * W)
