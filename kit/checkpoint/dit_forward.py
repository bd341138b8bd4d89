"""The denoiser's forward pass over a padded batch, differentiable, on the runtime's own modules.

Rows of one batch share the grid, not the length of the prefix: a row of length P is padded on the
left, and its tokens keep the positions that they have without padding. Equal to the runtime's pass
over each row alone.

    slots of S     [pad | prefix | <timestep> | image tokens]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.attention.rotary import split_qkv
from kit.model.moe import MoE
from kit.model.norm import RMSNorm
from kit.model.timestep import MAX_PERIOD, NUM_FREQUENCIES, TimestepEmbedder
from kit.model.transformer import DecoderLayer, HunyuanImage3
from kit.modelspec.config import ModelConfig
from kit.tokenizer.layout import Layout, positions_yx

_HIDDEN = -30000.0
"""Added to the scores of keys that a query does not see; finite, so that a padded query, which
sees none, gets no NaN."""

LayerFunction = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class GridTables:
    """What all batches of one grid share, on the device; S slots."""

    grid: tuple[int, int]
    offsets_yx: Tensor
    """Position of each slot less the length of the prefix, float32 [S, 2]."""

    visible: Tensor
    """bool [S, S], padding not yet hidden; rows are queries."""

    frequencies: Tensor
    """float32 [D/4, 2]: of y, of x."""

    @classmethod
    def make(
        cls, config: ModelConfig, grid: tuple[int, int], num_slots: int, device: torch.device
    ) -> GridTables:
        num_prefix = num_slots - 1 - grid[0] * grid[1]
        assert num_prefix > 0, "a row has room for a prefix"
        layout = Layout(prefix_len=num_prefix, num_special=1, grid=grid, tail_len=0)
        offsets = torch.from_numpy(positions_yx(layout) - num_prefix).float()
        visible = torch.ones(num_slots, num_slots, dtype=torch.bool).tril()
        visible[layout.image_span.start :, layout.image_span.start :] = True
        exponents = torch.arange(0, config.attention_head_dim, 2) / config.attention_head_dim
        frequencies = (1.0 / (config.rope_theta**exponents)).view(-1, 2)
        return cls(grid, offsets.to(device), visible.to(device), frequencies.to(device))

    @property
    def num_image(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix(self) -> int:
        """Slots before <timestep>."""
        return len(self.offsets_yx) - 1 - self.num_image


@dataclass(frozen=True)
class BatchTables:
    """What all layers of one pass share; B rows, S slots, D head size."""

    cos: Tensor
    """float32 [B, S, 1, D/2], as sin."""

    sin: Tensor
    bias: Tensor
    """[B, 1, S, S], added to attention scores."""

    valid: Tensor
    """float32 [B, S]: 0 for padding."""


def batch_tables(tables: GridTables, lengths: Tensor, dtype: torch.dtype) -> BatchTables:
    """Make the tables of rows whose prefixes have int `lengths` [B]; `dtype` is the scores'."""
    positions = tables.offsets_yx + lengths[:, None, None]  # [B, S, 2]
    angles = (positions[:, :, None] * tables.frequencies).flatten(2)[:, :, None]  # [B, S, 1, D/2]
    slots = torch.arange(len(tables.offsets_yx), device=lengths.device)
    valid = slots >= (tables.num_prefix - lengths)[:, None]
    bias = torch.where(tables.visible & valid[:, None], 0.0, _HIDDEN).to(dtype)[:, None]
    return BatchTables(angles.cos(), angles.sin(), bias, valid.float())


class TrainingForward:
    """Predicts velocities with the parameters of one denoiser."""

    def __init__(
        self,
        model: HunyuanImage3,
        num_slots: int,
        layer: LayerFunction | None = None,
    ) -> None:
        """Take `layer_forward` or a compiled form of it as `layer`."""
        self.model = model
        self._num_slots = num_slots
        self._layer = layer or layer_forward
        self._tables: dict[tuple[int, int], GridTables] = {}
        exponents = torch.arange(NUM_FREQUENCIES, dtype=torch.float32) / NUM_FREQUENCIES
        self._frequencies = (MAX_PERIOD**-exponents).to(model.device)

    def __call__(
        self, latents: Tensor, sigmas: Tensor, prefixes: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return velocities float32 [B, C, h, w] and the mean balance loss of the routers.

        latents float32 [B, C, h, w], sigmas float32 [B], prefixes int64 [B, P] padded on the
        left, lengths [B] without the padding.
        """
        model, grid = self.model, (latents.shape[2], latents.shape[3])
        tables = self._grid_tables(grid)
        prefixes = F.pad(prefixes, (tables.num_prefix - prefixes.shape[1], 0))
        angles = (sigmas * 1000.0)[:, None] * self._frequencies
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1)
        image = model.patch_embed(latents, _embed_time(model.time_embed, waves))
        special = _embed_time(model.timestep_emb, waves)[:, None]
        x = torch.cat((model.embed_tokens(prefixes), special, image), dim=1)
        autocast = torch.is_autocast_enabled(x.device.type)
        scores_dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
        batch = batch_tables(tables, lengths, scores_dtype)
        balance = torch.zeros((), device=x.device)
        for layer in model.model.layers:
            x, unbalanced = self._layer(layer, x, batch.cos, batch.sin, batch.bias, batch.valid)
            balance = balance + unbalanced / len(model.model.layers)
        hidden = x[:, -tables.num_image :]
        emb = _embed_time(model.time_embed_2, waves)
        prediction: Tensor = model.final_layer(hidden, emb, grid)
        return prediction, balance

    def _grid_tables(self, grid: tuple[int, int]) -> GridTables:
        if grid not in self._tables:
            model = self.model
            self._tables[grid] = GridTables.make(model.config, grid, self._num_slots, model.device)
        return self._tables[grid]


def layer_forward(
    layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one decoder layer on [B, S, hidden]; the tensors are those of BatchTables.

    Returns the result and the router's balance loss. Reads no attribute that differs between the
    layers, so one compiled graph serves all of them.
    """
    assert isinstance(layer, DecoderLayer)
    attention = layer.self_attn
    qkv = attention.qkv_proj(layer.input_layernorm(x)).unflatten(-1, attention.qkv_shape)
    q, k, v = split_qkv(qkv)
    group = q.shape[2] // k.shape[2]
    q = rotate_and_norm(q, cos, sin, attention.query_layernorm).transpose(1, 2)
    k = rotate_and_norm(k, cos, sin, attention.key_layernorm).transpose(1, 2)
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v.transpose(1, 2)))  # [B, H, S, D]
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    x = x + attention.o_proj(attended.transpose(1, 2).flatten(2))
    routed, balance = moe_forward(layer.mlp, layer.post_attention_layernorm(x), valid)
    return x + routed, balance


def rotate_and_norm(x: Tensor, cos: Tensor, sin: Tensor, norm: RMSNorm) -> Tensor:
    """Rotate [B, S, H, D] by angles of each row, then normalise over D; x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    normed = turned * torch.rsqrt(turned.pow(2).mean(-1, keepdim=True) + norm.eps)
    return (normed * norm.weight.float()).to(x.dtype)


def moe_forward(moe: MoE, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Run the experts on [B, S, H] as one wide MLP whose hidden units the router scales.

    Equal to MoE.forward. Also returns how unbalanced the router is over the `valid` [B, S]
    tokens: 1 when all experts get as much (W. Fedus et al., "Switch Transformers", 2021).
    """
    experts = moe.experts
    num, hidden, width = experts.down_proj.shape  # E, H, I
    with torch.autocast(x.device.type, enabled=False):
        probabilities = F.linear(x.float(), moe.gate.wg.weight).softmax(-1)  # [B, S, E]
        chosen = _most_probable(probabilities, moe.gate.top_k)
        weights = probabilities * chosen
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-8)
        tokens = valid.sum()
        load = (chosen * valid[..., None]).sum((0, 1)) / (tokens * moe.gate.top_k)
        wish = (probabilities * valid[..., None]).sum((0, 1)) / tokens
        balance = num * (load * wish).sum()
    units = F.linear(x, experts.gate_and_up_proj.flatten(0, 1))
    units = torch.unflatten(units, -1, (num, 2 * width))
    first, second = units.chunk(2, dim=-1)  # [B, S, E, I]
    scaled = first * F.silu(second) * weights[..., None].to(first.dtype)
    down = experts.down_proj.permute(1, 0, 2).reshape(hidden, num * width)
    return F.linear(scaled.flatten(2), down) + moe.shared_mlp(x), balance


def _embed_time(embedder: TimestepEmbedder, waves: Tensor) -> Tensor:
    """Map the sinusoid float32 [B, 256] to [B, hidden]."""
    embedded: Tensor = embedder.mlp(waves)
    return embedded


def _most_probable(probabilities: Tensor, num: int) -> Tensor:
    """Return 1 at the `num` largest of [..., E], else 0; so few are found faster one by one."""
    experts = torch.arange(probabilities.shape[-1], device=probabilities.device)
    chosen = torch.zeros_like(probabilities)
    for _ in range(num):
        best = (probabilities - 2 * chosen).argmax(dim=-1, keepdim=True)
        chosen = chosen + (experts == best)
    return chosen
