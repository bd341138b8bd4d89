"""Three-dimensional convolution of very short clips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.parallel.strips import ALL_ROWS, Strips


class ClipConv3d(nn.Module):
    """Conv3d with zero padding and stride 1, as one Conv2d per frame.

    The frames that a kernel reaches lie side by side as channels of a 2-D convolution, so its
    taps on padding are never computed: two thirds of them for a clip of one frame, a third for
    two, a sixth for four. Equal to Conv3d but for the order of summation.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3) -> None:
        super().__init__()
        kernel = (kernel_size, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *kernel))
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.reach = kernel_size // 2

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C_in, T, H, W] to [B, C_out, T, H, W], H the rows of this rank."""
        # Contiguous, so that neighbouring frames are channels without a copy.
        frames = strips.with_neighbours(x.transpose(1, 2), self.reach)
        padding = strips.padding(self.reach)
        if frames.shape[1] == 1:  # the common case; stacking would copy it
            return self._frame(frames, 0, padding)[:, :, None]
        return torch.stack([self._frame(frames, t, padding) for t in range(frames.shape[1])], dim=2)

    def last_frame(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Return the last frame of forward(x) alone, [B, C_out, H, W]."""
        reached = x.transpose(1, 2)[:, -1 - self.reach :]
        frames = strips.with_neighbours(reached, self.reach)
        return self._frame(frames, frames.shape[1] - 1, strips.padding(self.reach))

    def _frame(self, frames: Tensor, t: int, padding: int) -> Tensor:
        """Compute output frame t, [B, C_out, H, W], from [B, T, C_in, H, W].

        `padding` is that of the rows; columns are always padded.
        """
        first, end = max(0, t - self.reach), min(frames.shape[1], t + self.reach + 1)
        window = frames[:, first:end].flatten(1, 2)  # [B, n*C_in, H, W]
        offset = self.reach - t
        taps = self.weight.transpose(1, 2)[:, first + offset : end + offset]
        return F.conv2d(window, taps.flatten(1, 2), self.bias, padding=(padding, self.reach))
