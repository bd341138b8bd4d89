"""Other ways to compute the same on a card: what the kit's kernels are compared with.

Axis letters: B rows, T query tokens, S key tokens, H query heads, K kv heads, D head size,
N tokens of all rows, k experts per token, E experts.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.attention.oracle import layout_mask
from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.model.clip_conv import ClipConv3d
from kit.model.group_norm import GroupNorm
from kit.model.moe import MoE, gated_mlp
from kit.model.norm import RMSNorm
from kit.model.shard import WHOLE, Shard
from kit.model.transformer import HunyuanImage3
from kit.parallel.strips import ALL_ROWS, Strips
from kit.tokenizer.layout import Layout


def grouped_layer(layer: MoE, x: Tensor) -> Tensor:
    """Compute an expert layer on torch._grouped_mm between torch operations; waits for nobody."""
    tokens = x.flatten(0, 1)
    weights, indices = layer.gate(tokens)
    experts, pairs = indices.flatten().sort(stable=True)
    sources = pairs // indices.shape[1]
    up, down = layer.experts.gate_and_up_proj, layer.experts.down_proj
    ids = torch.arange(len(down), device=x.device)
    ends = torch.searchsorted(experts, ids, right=True).int()
    both = torch._grouped_mm(tokens[sources], up.transpose(1, 2), offs=ends)
    first, second = both.chunk(2, dim=-1)
    rows = torch._grouped_mm(first * F.silu(second), down.transpose(1, 2), offs=ends)
    total = torch.zeros(tokens.shape, dtype=torch.float32, device=x.device)
    total.index_add_(0, sources, rows.float() * weights.flatten()[pairs][:, None])
    out: Tensor = (total + layer.shared_mlp(tokens)).to(x.dtype)
    return out.view_as(x)


class KnownSizesLoop(nn.Module):
    """An expert layer as a loop over experts that knows how many tokens each gets.

    The first call on a new input must find that out and waits for it; calls on the same input then
    wait for nobody. So it may not be used on other inputs: `sizes` is cleared for that.
    """

    def __init__(self, layer: MoE) -> None:
        super().__init__()
        self.layer = layer
        self.sizes: list[int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, H] to [B, T, H]."""
        tokens, layer = x.flatten(0, 1), self.layer
        weights, indices = layer.gate(tokens)
        experts, pairs = indices.flatten().sort(stable=True)
        if self.sizes is None:
            ids = torch.arange(len(layer.experts.down_proj), device=x.device)
            self.sizes = torch.searchsorted(experts, ids, right=True).tolist()
        sources = pairs // indices.shape[1]
        weight_of_pair = weights.flatten()[pairs][:, None]
        total = torch.zeros(tokens.shape, dtype=torch.float32, device=x.device)
        up, down = layer.experts.gate_and_up_proj, layer.experts.down_proj
        for expert, (start, end) in enumerate(pairwise((0, *self.sizes))):
            if start < end:
                rows = gated_mlp(tokens[sources[start:end]], up[expert], down[expert])
                weighted = rows.float() * weight_of_pair[start:end]
                total.index_add_(0, sources[start:end], weighted)
        out: Tensor = (total + layer.shared_mlp(tokens)).to(x.dtype)
        return out.view_as(x)


class WaitingLoop(nn.Module):
    """An expert layer as the official eager implementation computes it.

    Every token is repeated for each of its experts; the loop selects an expert's copies by a
    boolean mask and puts its results back by the same mask, so it waits for the host twice an
    expert; the weighted sum comes last.
    """

    def __init__(self, layer: MoE) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, H] to [B, T, H]."""
        tokens, layer = x.flatten(0, 1), self.layer
        weights, indices = layer.gate(tokens)
        top_k, experts = indices.shape[1], indices.flatten()
        copies = tokens.repeat_interleave(top_k, dim=0)  # [N*k, H]
        results = torch.zeros_like(copies)
        up, down = layer.experts.gate_and_up_proj, layer.experts.down_proj
        for expert in range(len(down)):
            chosen = experts == expert
            results[chosen] = gated_mlp(copies[chosen], up[expert], down[expert])
        routed = (results.view(-1, top_k, x.shape[-1]) * weights[..., None].to(x.dtype)).sum(1)
        out: Tensor = routed + layer.shared_mlp(tokens)
        return out.view_as(x)


class MaskedStaticCache:
    """A StepKV as the official implementation has it: one static cache, one dense boolean mask.

    Keys and values of all heads are repeated to the query heads before each call.
    """

    def __init__(self, layout: Layout, plan: StepPlan, cache: Tensor) -> None:
        """cache [L, 2, B, S, K, D], shared by the steps of a request."""
        self._plan, self._cache = plan, cache
        self._mask = layout_mask(layout)[plan.start : plan.end].to(cache.device)  # [T, S]

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """See StepKV.write."""
        q, k, v = prepare_qkv(qkv, rotary, norm)
        self._cache[layer, 0, :, self._plan.start : self._plan.end] = k
        self._cache[layer, 1, :, self._plan.start : self._plan.end] = v
        return q

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See StepKV.attend."""
        group = q.shape[2] // self._cache.shape[4]
        keys, values = (
            part.repeat_interleave(group, dim=2).transpose(1, 2) for part in self._cache[layer]
        )
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=self._mask[:, : keys.shape[2]]
        )
        return out.transpose(1, 2)


def sharing_weights(model: HunyuanImage3, shard: Shard = WHOLE) -> HunyuanImage3:
    """Return a second module over the same weights, without the kit's fused kernels.

    Its ranks may share something else than weights: tokens.
    """
    with torch.device("meta"):
        other = HunyuanImage3(model.config, shard)
    other.load_state_dict(model.state_dict(), assign=True)
    for part in other.modules():
        if isinstance(part, MoE | RMSNorm | GroupNorm):
            part.fused = False
    return other


Loop = TypeVar("Loop", KnownSizesLoop, WaitingLoop)


def use_loops(model: HunyuanImage3, kind: type[Loop]) -> list[Loop]:
    """Turn every expert layer of a model into a loop of some kind; returns the loops."""
    loops = []
    for layer in model.model.layers:
        assert isinstance(layer.mlp, MoE), "layers are turned once"
        loop = kind(layer.mlp)
        layer.mlp = loop
        loops.append(loop)
    return loops


class PlainClipConv3d(nn.Module):
    """The convolution that a ClipConv3d stands for, on its weights: all taps, also on padding."""

    def __init__(self, conv: ClipConv3d) -> None:
        super().__init__()
        self.weight, self.bias, self.reach = conv.weight, conv.bias, conv.reach

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C_in, T, H, W] to [B, C_out, T, H, W]."""
        assert strips.is_whole, "a rank that is alone has all rows"
        return F.conv3d(x, self.weight, self.bias, padding=self.reach)

    def last_frame(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Return the last frame, [B, C_out, H, W]."""
        return self.forward(x, strips)[:, :, -1]
