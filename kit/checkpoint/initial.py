"""The random weights that training starts from."""

from __future__ import annotations

import math

import torch
from torch import nn

from kit.model.attention import Attention
from kit.model.clip_conv import ClipConv3d
from kit.model.final_layer import FinalLayer
from kit.model.moe import Experts, GatedMLP, Router
from kit.model.resblock import ResBlock
from kit.model.transformer import HunyuanImage3
from kit.model.vae_blocks import AttnBlock, ResnetBlock

_EMBEDDING_STD = 0.5
_ROUTER_STD = 0.02


@torch.no_grad()
def init_vae(module: nn.Module) -> None:
    """Fill an encoder or decoder in place: middle slices at random, residual branches at zero."""
    for part in module.modules():
        if isinstance(part, ClipConv3d):
            fan_in = part.weight[0, :, 0].numel()
            part.weight.zero_()
            part.weight[:, :, part.reach].uniform_(-(fan_in**-0.5), fan_in**-0.5)
            part.bias.zero_()
    for part in module.modules():
        if isinstance(part, ResnetBlock):
            part.conv2.weight.zero_()
        if isinstance(part, AttnBlock):
            part.proj_out.weight.zero_()


@torch.no_grad()
def init_transformer(model: HunyuanImage3) -> None:
    """Fill the denoiser in place; the first prediction is zero everywhere."""
    # Every layer adds two branches to the residual stream.
    branch_gain = 1 / math.sqrt(2 * len(model.model.layers))
    for part in model.modules():
        if isinstance(part, Router):
            part.wg.weight.normal_(std=_ROUTER_STD)
        if isinstance(part, Attention):
            part.qkv_proj.weight.normal_(std=part.qkv_proj.in_features**-0.5)
            part.o_proj.weight.normal_(std=branch_gain * part.o_proj.in_features**-0.5)
        if isinstance(part, GatedMLP):
            gate, down = part.gate_and_up_proj, part.down_proj
            gate.weight.normal_(std=gate.in_features**-0.5)
            down.weight.normal_(std=branch_gain * down.in_features**-0.5)
        if isinstance(part, Experts):
            gate_weight, down_weight = part.gate_and_up_proj, part.down_proj
            gate_weight.normal_(std=gate_weight.shape[-1] ** -0.5)
            down_weight.normal_(std=branch_gain * down_weight.shape[-1] ** -0.5)
        if isinstance(part, ResBlock):
            _zero(part.out_layers[3])
        if isinstance(part, FinalLayer):
            _, head = part.model
            assert isinstance(head, nn.Sequential)
            _zero(head[2])
    model.model.wte.weight.normal_(std=_EMBEDDING_STD)


def _zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.zero_()
