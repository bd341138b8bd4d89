"""Convolution by temporal taps against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kit.model.clip_conv import ClipConv3d


def random_conv(kernel_size: int) -> ClipConv3d:
    conv = ClipConv3d(6, 5, kernel_size)
    generator = torch.Generator().manual_seed(kernel_size)
    for parameter in conv.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)
    return conv


@pytest.mark.parametrize("num_frames", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_clip_conv_against_conv3d(kernel_size: int, num_frames: int) -> None:
    conv = random_conv(kernel_size)
    x = torch.randn(2, 6, num_frames, 9, 8, generator=torch.Generator().manual_seed(0))
    wanted = F.conv3d(x, conv.weight, conv.bias, padding=kernel_size // 2)
    torch.testing.assert_close(conv(x), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(conv.last_frame(x), wanted[:, :, -1], rtol=0, atol=1e-5)


def test_clip_conv_leaves_its_input_alone() -> None:
    conv = random_conv(3)
    x = torch.randn(1, 6, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    conv(x)
    conv.last_frame(x)
    assert x.equal(before)
