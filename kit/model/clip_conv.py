"""Three-dimensional convolution of very short clips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ClipConv3d(nn.Module):
    """Conv3d with zero padding and stride 1, as one batched Conv2d per temporal tap.

    On a clip of one frame the outer taps of a 3x3x3 kernel meet zero padding only, so the middle
    one is the whole convolution; on two frames a third of the taps are skipped, on four a sixth.
    CPU backends also run 2-D convolutions several times faster. Equal to Conv3d but for rounding.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3) -> None:
        super().__init__()
        assert kernel_size in (1, 3), "the autoencoder has no other kernels"
        kernel = (kernel_size, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *kernel))
        self.bias = nn.Parameter(torch.empty(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C_in, T, H, W] to [B, C_out, T, H, W]."""
        middle = self.weight.shape[2] // 2
        out = self._tap(x, middle, self.bias)
        if middle and x.shape[2] > 1:
            out[:, :, 1:] += self._tap(x[:, :, :-1], middle - 1)
            out[:, :, :-1] += self._tap(x[:, :, 1:], middle + 1)
        return out

    def last_frame(self, x: Tensor) -> Tensor:
        """Return the last frame of forward(x) alone, [B, C_out, 1, H, W]."""
        middle = self.weight.shape[2] // 2
        out = self._tap(x[:, :, -1:], middle, self.bias)
        if middle and x.shape[2] > 1:
            out += self._tap(x[:, :, -2:-1], middle - 1)
        return out

    def _tap(self, x: Tensor, tap: int, bias: Tensor | None = None) -> Tensor:
        """Convolve every frame with one temporal slice of the kernel."""
        weight = self.weight[:, :, tap]
        B, _, T, H, W = x.shape
        frames = x.transpose(1, 2).flatten(0, 1)  # [B*T, C_in, H, W]
        out = F.conv2d(frames, weight, bias, padding=weight.shape[-1] // 2)
        return out.view(B, T, -1, H, W).transpose(1, 2)
