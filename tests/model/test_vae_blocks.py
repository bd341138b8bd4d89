"""Blocks of the autoencoder against their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kit.model.vae_blocks import AttnBlock, ResnetBlock, Upsample, depth_to_space


def fill(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)


@pytest.mark.parametrize("time_factor", [1, 2])
def test_depth_to_space_moves_every_channel_to_its_place(time_factor: int) -> None:
    c, T, H, W = 3, 2, 2, 3
    x = torch.arange(time_factor * 4 * c * T * H * W, dtype=torch.float32)
    x = x.view(1, time_factor * 4 * c, T, H, W)
    out = depth_to_space(x, time_factor)
    assert out.shape == (1, c, T * time_factor, 2 * H, 2 * W)
    for rt, ry, rx, channel in itertools.product(range(time_factor), (0, 1), (0, 1), range(c)):
        source = ((rt * 2 + ry) * 2 + rx) * c + channel
        assert out[0, channel, rt::time_factor, ry::2, rx::2].equal(x[0, source])


def test_attention_against_explicit_softmax_over_all_frames() -> None:
    block = AttnBlock(32)
    fill(block)
    x = torch.randn(1, 32, 2, 3, 4, generator=torch.Generator().manual_seed(2))
    h = block.norm(x).flatten(2)[0]  # [C, T*H*W]

    def project(name: str, value: torch.Tensor) -> torch.Tensor:
        weight, bias = (block.get_parameter(f"{name}.{part}") for part in ("weight", "bias"))
        return weight.flatten(1) @ value + bias[:, None]

    q, k, v = (project(name, h) for name in ("q", "k", "v"))
    weights = (q.T @ k / math.sqrt(32)).softmax(-1)  # [queries, keys]
    wanted = x + project("proj_out", v @ weights.T).view_as(x)
    torch.testing.assert_close(block(x), wanted, rtol=0, atol=1e-5)


def test_upsample_with_zero_weights_repeats_its_input() -> None:
    upsample = Upsample(32, 32, temporal=True)
    for parameter in upsample.parameters():
        parameter.zero_()
    x = torch.randn(1, 32, 1, 2, 2)
    out = upsample(x)
    assert out.shape == (1, 32, 2, 4, 4)
    # Each channel is repeated 8 times in a row, so output channel c of sub-position p is input
    # channel (p * 32 + c) // 8.
    for p, (rt, ry, rx) in enumerate(itertools.product((0, 1), repeat=3)):
        source = (p * 32 + torch.arange(32)) // 8
        assert out[0, :, rt, ry::2, rx::2].equal(x[0, source, 0])


def test_shortcut_exists_where_widths_differ() -> None:
    assert ResnetBlock(32, 32).nin_shortcut is None
    block = ResnetBlock(32, 64)
    fill(block)
    block.conv2.weight.zero_()
    block.conv2.bias.zero_()
    x = torch.randn(1, 32, 2, 4, 4)
    assert block.nin_shortcut is not None
    assert block(x).equal(block.nin_shortcut(x))
