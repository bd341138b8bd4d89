"""The denoiser's forward pass over a padded batch, differentiable, on the runtime's own modules.

Rows of one batch share the grid, not the length of the text: its tokens are padded on the left, and
keep the positions that they have without padding. Equal to the runtime's pass over each row alone.

    slots of S                   [       pad | text | <timestep> | image tokens]
    the same with a reference    [head | pad | text | <timestep> | image tokens]

The head ends with the reference's <eoi>. Latents and patches in it see one another, as in
`kit.tokenizer.layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.attention.rotary import split_qkv
from kit.checkpoint.vision_reader import VisionReader
from kit.model.moe import MoE
from kit.model.norm import RMSNorm
from kit.model.timestep import MAX_PERIOD, NUM_FREQUENCIES, TimestepEmbedder
from kit.model.transformer import DecoderLayer, HunyuanImage3
from kit.modelspec.config import ModelConfig
from kit.tokenizer.layout import Layout, ReferenceSpan, positions_yx

_HIDDEN = -30000.0
"""Added to the scores of keys that a query does not see; finite, so that a padded query, which
sees none, gets no NaN."""

LayerFunction = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ReferenceBatch:
    """The reference images of B rows, one each, all of one size."""

    latents: Tensor
    """float32 [B, C, h, w], drawn and scaled."""

    patches: Tensor
    """float32 [B, rows * columns, patch_dim]."""

    head: Tensor
    """int64 [F]: the token ids in front of the text, the same in all rows."""

    span: ReferenceSpan
    """Where the reference lies in the head."""


@dataclass(frozen=True)
class GridTables:
    """What all batches of one grid share, on the device; S slots."""

    grid: tuple[int, int]
    positions_yx: Tensor
    """Position of each slot in a row without padding, float32 [S, 2]."""

    visible: Tensor
    """bool [S, S], padding not yet hidden; rows are queries."""

    frequencies: Tensor
    """float32 [D/4, 2]: of y, of x."""

    num_head: int
    """Slots in front of the padding."""

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        grid: tuple[int, int],
        num_slots: int,
        device: torch.device,
        span: ReferenceSpan | None = None,
    ) -> GridTables:
        num_head = 0 if span is None else span.end + 1
        num_prefix = num_slots - 1 - grid[0] * grid[1]
        assert num_prefix > num_head, "a row has room for a text"
        references = () if span is None else (span,)
        layout = Layout(num_prefix, num_special=1, grid=grid, tail_len=0, references=references)
        positions = torch.from_numpy(positions_yx(layout)).float()
        visible = torch.ones(num_slots, num_slots, dtype=torch.bool).tril()
        for seen in (layout.image_span, *references):
            visible[seen.start : seen.end, seen.start : seen.end] = True
        exponents = torch.arange(0, config.attention_head_dim, 2) / config.attention_head_dim
        frequencies = (1.0 / (config.rope_theta**exponents)).view(-1, 2)
        return cls(grid, positions.to(device), visible.to(device), frequencies.to(device), num_head)

    @property
    def num_image(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_text(self) -> int:
        """Slots between the head and <timestep>."""
        return len(self.positions_yx) - 1 - self.num_image - self.num_head


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
    """Make the tables of rows whose texts have int `lengths` [B]; `dtype` is the scores'."""
    slots = torch.arange(len(tables.positions_yx), device=lengths.device)
    in_head = slots < tables.num_head
    num_padding = (tables.num_text - lengths)[:, None]
    moved = torch.where(in_head, 0, num_padding)  # [B, S]
    positions = tables.positions_yx - moved[:, :, None]  # [B, S, 2]
    angles = (positions[:, :, None] * tables.frequencies).flatten(2)[:, :, None]  # [B, S, 1, D/2]
    valid = in_head | (slots >= tables.num_head + num_padding)
    bias = torch.where(tables.visible & valid[:, None], 0.0, _HIDDEN).to(dtype)[:, None]
    return BatchTables(angles.cos(), angles.sin(), bias, valid.float())


class TrainingForward:
    """Predicts velocities with the parameters of one denoiser, and of what reads references."""

    def __init__(
        self,
        model: HunyuanImage3,
        num_slots: int,
        layer: LayerFunction | None = None,
        *,
        reader: VisionReader | None = None,
        num_edit_slots: int = 0,
    ) -> None:
        """Take `layer_forward` or a compiled form of it as `layer`.

        Rows have `num_slots` tokens, those with a reference `num_edit_slots`; without a `reader`
        there are no such rows.
        """
        self.model, self.reader = model, reader
        self._num_slots, self._num_edit_slots = num_slots, num_edit_slots
        self._layer = layer or layer_forward
        self._tables: dict[tuple[tuple[int, int], ReferenceSpan | None], GridTables] = {}
        exponents = torch.arange(NUM_FREQUENCIES, dtype=torch.float32) / NUM_FREQUENCIES
        self._frequencies = (MAX_PERIOD**-exponents).to(model.device)

    def __call__(
        self,
        latents: Tensor,
        sigmas: Tensor,
        texts: Tensor,
        lengths: Tensor,
        reference: ReferenceBatch | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return velocities float32 [B, C, h, w] and the mean balance loss of the routers.

        latents float32 [B, C, h, w], sigmas float32 [B], texts int64 [B, T] padded on the left,
        lengths [B] without the padding. A text is all of the prefix that is not in a reference's
        head.
        """
        model, grid = self.model, (latents.shape[2], latents.shape[3])
        tables = self._grid_tables(grid, None if reference is None else reference.span)
        assert texts.shape[1] <= tables.num_text, "texts fit into their slots"
        texts = F.pad(texts, (tables.num_text - texts.shape[1], 0))
        waves = self._waves(sigmas)
        image = model.patch_embed(latents, _embed_time(model.time_embed, waves))
        special = _embed_time(model.timestep_emb, waves)[:, None]
        head = () if reference is None else self._head(reference)
        x = torch.cat((*head, model.embed_tokens(texts), special, image), dim=1)
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

    def _head(self, reference: ReferenceBatch) -> tuple[Tensor, ...]:
        """Embed the head of every row: parts [B, n, hidden] in their order."""
        model, span = self.model, reference.span
        assert self.reader is not None, "rows with a reference have what reads it"
        num = len(reference.latents)
        # No noise is left in a reference, so its timestep is 0.
        wave = self._waves(torch.zeros(1, device=reference.latents.device))
        latents = model.patch_embed(
            reference.latents, _embed_time(model.time_embed, wave).expand(num, -1)
        )
        patches = self.reader(reference.patches, span.patch_grid)
        ids = model.embed_tokens(reference.head.expand(num, -1))
        timestep = _embed_time(model.timestep_emb, wave).expand(num, 1, -1)
        separator = ids[:, span.latents.end : span.patches.start]
        return (ids[:, : span.timestep], timestep, latents, separator, patches, ids[:, span.end :])

    def _waves(self, sigmas: Tensor) -> Tensor:
        """Return the sinusoids [B, 256] of noise levels float32 [B]."""
        angles = (sigmas * 1000.0)[:, None] * self._frequencies
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def _grid_tables(self, grid: tuple[int, int], span: ReferenceSpan | None) -> GridTables:
        if (grid, span) not in self._tables:
            model = self.model
            num_slots = self._num_slots if span is None else self._num_edit_slots
            tables = GridTables.make(model.config, grid, num_slots, model.device, span)
            self._tables[grid, span] = tables
        return self._tables[grid, span]


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
