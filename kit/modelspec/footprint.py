"""The one place that computes bytes: keys and values, weights, activations.

The KV formulas follow the paged layout: a page is a fixed number of token slots, a slot holds the
key and the value of one token in all layers. Sizes are those of one rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kit.errors import ConfigError
from kit.modelspec.config import ModelConfig
from kit.modelspec.tensors import LAYER_PARTS, REFERENCE_PARTS, Part, expected_tensors
from kit.modelspec.vae_maps import decoder_map_elements, encoder_map_elements, live_maps

FLOAT32_BYTES = 4

# Keys per tile of the CPU reference kernel, and six running numbers per query and head.
_SCORES_PER_HEAD = 128 + 6

VAE_TILE = 24
"""Latent pixels of a tile's side where the decoder works in tiles."""

KEPT_ROW_GRAIN = 1024
"""Contiguous rows that stay at one address for captured graphs are as long as the next multiple."""

_WAITING_PARTS: tuple[Part, ...] = ("vae_decoder", *REFERENCE_PARTS)
_SPLIT_PARTS: frozenset[Part] = frozenset({"attention", "experts", "shared_expert"})


@dataclass(frozen=True)
class Split:
    """How many ranks share what of a model.

    The embedding, norms, routers, timestep embedders, the layers between latents and tokens, and
    the VAE decoder are whole on every rank.
    """

    tensor: int = 1
    """Ranks that share the heads and the width of every expert."""

    sequence: int = 1
    """Ranks that share the tokens, and around attention the heads of a tensor rank."""

    cfg: int = 1
    """Ranks that share the computation of the CFG rows."""

    decode: int = 1
    """Ranks that decode an image together, a strip of rows each."""

    whole_experts: bool = False
    """Tensor ranks have whole experts, as many each, in place of slices of all."""


ONE_RANK = Split()


@dataclass(frozen=True)
class ActivationBytes:
    """Estimated working memory of one request, beside weights, keys and values."""

    denoise: int
    """The first denoising step, which computes the most tokens."""

    decode: int
    """The VAE decoder; nothing of a denoising step lives then."""

    encode: int = 0
    """The VAE encoder of one reference image, before the first step; 0 without references."""

    @property
    def peak(self) -> int:
        return max(self.denoise, self.decode, self.encode)


def slot_bytes(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


def check_split(model: ModelConfig, split: Split) -> None:
    """Raise ConfigError with the sizes that go when ranks cannot share heads or experts evenly."""
    heads = model.num_key_value_heads
    if heads % (split.tensor * split.sequence):
        name, own, other = "tensor_parallel_size", split.tensor, split.sequence
        # Named is the one that could be changed alone.
        if heads % split.tensor == 0:
            name, own, other = "ulysses_degree", split.sequence, split.tensor
        sizes = [str(n) for n in range(1, heads + 1) if heads % (n * other) == 0]
        raise ConfigError(
            name,
            f"tensor_parallel_size {split.tensor} x ulysses_degree {split.sequence} does not "
            f"divide the model's {heads} kv heads",
            value=own,
            remedy=f"use one of {', '.join(sizes)}" if sizes else "lower both",
        )
    shared = model.num_experts if split.whole_experts else model.moe_intermediate_size
    if any(number % split.tensor for number in shared):
        what = "experts" if split.whole_experts else "expert widths"
        raise ConfigError(
            "tensor_parallel_size",
            f"does not divide the model's {what}, {', '.join(map(str, sorted(set(shared))))}",
            value=split.tensor,
            remedy="lower it, or change enable_expert_parallel",
        )


def kv_token_bytes(model: ModelConfig, dtype_bytes: int, split: Split = ONE_RANK) -> int:
    """Return the bytes of one token's keys and values on one rank; raises as check_split."""
    check_split(model, split)
    return slot_bytes(
        model.num_hidden_layers,
        kv_heads(model, split),
        model.attention_head_dim,
        dtype_bytes,
    )


def kv_heads(model: ModelConfig, split: Split) -> int:
    """Return the kv heads whose keys and values lie on one rank."""
    return model.num_key_value_heads // (split.tensor * split.sequence)


def page_bytes(token_bytes: int, page_size: int) -> int:
    """Return the bytes of a page of `page_size` slots."""
    return page_size * token_bytes


def pool_bytes(num_pages: int, bytes_per_page: int) -> int:
    """Return the bytes of so many pages."""
    return num_pages * bytes_per_page


def pages_within(num_bytes: int, bytes_per_page: int) -> int:
    """Return the whole pages that fit into so many bytes."""
    return max(0, num_bytes) // bytes_per_page


def own_rows(num_rows: int, row_ranks: int) -> int:
    """Return the rows that each of `row_ranks` ranks has; one row is on every rank."""
    return -(-num_rows // row_ranks)


def num_pages(num_tokens: int, page_size: int) -> int:
    """Return the pages that a row of `num_tokens` tokens takes; the last one may be part empty."""
    return -(-num_tokens // page_size)


def row_bytes(num_tokens: int, token_bytes: int, page_size: int) -> int:
    """Return the bytes that a row of `num_tokens` tokens reserves; contiguous: page_size 1."""
    return num_pages(num_tokens, page_size) * page_bytes(token_bytes, page_size)


def contiguous_bytes(num_rows: int, num_tokens: int, token_bytes: int) -> int:
    """Return the bytes that rows of `num_tokens` tokens take without pages."""
    return num_rows * row_bytes(num_tokens, token_bytes, 1)


def kept_rows_bytes(model: ModelConfig, token_bytes: int, split: Split) -> int:
    """Return the bytes that contiguous rows of all requests keep where graphs are captured."""
    num_rows = own_rows(most_rows(model), split.cfg)
    return num_rows * row_bytes(longest_row(model), token_bytes, KEPT_ROW_GRAIN)


def longest_row(model: ModelConfig) -> int:
    """Return the most tokens a row can have."""
    return model.max_position_embeddings


def most_rows(model: ModelConfig) -> int:
    """Return the most CFG rows that a request can have."""
    return 1 if model.cfg_distilled else 2


def automatic_pool_pages(
    model: ModelConfig,
    *,
    max_num_seqs: int,
    max_rows: int,
    allowed_bytes: int,
    bytes_per_page: int,
    page_size: int,
) -> int:
    """Return the pages of a pool that nobody gave a size.

    It holds `max_num_seqs` requests of `max_rows` of the longest rows, or what
    `allowed_bytes` hold if that is less; that may be none.
    """
    wanted = max_num_seqs * max_rows * num_pages(longest_row(model), page_size)
    return min(wanted, pages_within(allowed_bytes, bytes_per_page))


def weight_bytes_by_part(
    model: ModelConfig,
    dtype_bytes: int,
    *,
    vae_dtype_bytes: int = FLOAT32_BYTES,
    split: Split = ONE_RANK,
    references: bool = False,
) -> Mapping[Part, int]:
    """Return the bytes of the weights that are loaded on one rank, per part.

    references: with those that read reference images. The router's weights are float32 whatever
    the rest is, as the official model declares them.
    """
    element_bytes: Mapping[Part, int] = {
        "router": FLOAT32_BYTES,
        "vae_decoder": vae_dtype_bytes,
        "vae_encoder": vae_dtype_bytes,
    }
    sizes: dict[Part, int] = {}
    for spec in expected_tensors(model).values():
        if spec.needed_for_t2i or (references and spec.part in REFERENCE_PARTS):
            ranks = split.tensor if spec.part in _SPLIT_PARTS else 1
            num_bytes = math.prod(spec.shape) // ranks * element_bytes.get(spec.part, dtype_bytes)
            sizes[spec.part] = sizes.get(spec.part, 0) + num_bytes
    return sizes


def weight_bytes(
    model: ModelConfig,
    dtype_bytes: int,
    *,
    vae_dtype_bytes: int = FLOAT32_BYTES,
    split: Split = ONE_RANK,
    references: bool = False,
) -> int:
    """Return the bytes of all weights that are loaded on one rank."""
    parts = weight_bytes_by_part(
        model, dtype_bytes, vae_dtype_bytes=vae_dtype_bytes, split=split, references=references
    )
    return sum(parts.values())


def resident_weights(
    model: ModelConfig, weights: Mapping[Part, int], *, stream_layers: bool, vae_waits: bool
) -> Mapping[Part, int]:
    """Return what of a rank's weights is always on its card; the rest waits in host memory.

    Streamed layers have two places on the card. A VAE decoder that waits, and what reads
    references beside it, come when they run.
    """
    places, layers = min(2, model.num_hidden_layers), model.num_hidden_layers
    resident = dict(weights)
    if stream_layers:
        for part in LAYER_PARTS:
            resident[part] = weights[part] * places // layers
    if vae_waits:
        for part in _WAITING_PARTS:
            resident.pop(part, None)
    return resident


def waiting_bytes(weights: Mapping[Part, int], *, stream_layers: bool, vae_waits: bool) -> int:
    """Return the bytes of a rank's weights that lie in host memory."""
    layers = sum(weights[part] for part in LAYER_PARTS) if stream_layers else 0
    vae = sum(weights.get(part, 0) for part in _WAITING_PARTS) if vae_waits else 0
    return layers + vae


def activation_bytes(
    model: ModelConfig,
    *,
    height: int,
    width: int,
    prefix_len: int,
    num_rows: int,
    dtype_bytes: int,
    fused: bool = False,
    grouped: bool = False,
    vae_dtype_bytes: int = FLOAT32_BYTES,
    vae_tiling: bool = False,
    split: Split = ONE_RANK,
    reference_hw: tuple[int, int] | None = None,
) -> ActivationBytes:
    """Estimate the working memory of a request of height x width pixels on one rank.

    reference_hw: height and width of the largest reference image as the VAE encoder reads it.

    An estimate from the largest tensors that live together; allocators and kernels add their own.
    b bytes per element, T tokens of all rows in the first step, A query heads, H hidden, E experts
    of which a token takes k, I their width; q and qkv are the projections' widths:

        denoise = 2 W H b + 2 T H b + max(attention, experts)

        2 W H b     embeddings of the row and of its target, W tokens on any number of sequence
                    ranks
        2 T H b     the stream, its normed copy
        attention   T (qkv + 2 q) b + T (3 q + 134 A) 4       projection, query, output; query,
                                                              result, product and one tile of
                                                              scores in the float32 of the CPU
                                                              reference
        experts     T (2 E + 3 H) 4 + T (3 H + 4 I) b         router; sum, output and weighted
                                                              output; the layer's own input; a
                                                              single expert that all tokens chose

        and with `fused` kernels, on a card:

        attention   T (qkv + 3 q) b                           projection, query, output in pieces
                                                              and whole
        experts     T k (H + I) b + T H b                     gated rows and second product; the
                                                              shared expert's output

    or, on an NPU, experts that are `grouped` beside plain attention:

        experts     T k max(H + 3 I, 2 H + I) b + T H b       rows of all experts, first product,
                    + T 2 E 4                                 gated rows; or gated rows and second
                                                              product beside them; router

        decode  = 4 to 7.25 feature maps of the decoder's largest level, see live_maps; of one
                  tile with vae_tiling, of the tallest strip where ranks decode together
        encode  = as many of the encoder's; whole on every rank

    Ranks that share rows or tokens divide T, tensor ranks the heads and I; with whole experts in
    their place k (every rank is taken to get its share of the tokens).

    Sources: the kit's own model and kernels, which follow the official layer and decoder; more
    than one rank is arithmetic, not measured.
    """
    grid = model.latent_grid(height, width)
    row_tokens = prefix_len + model.num_target_tokens(height, width)
    rows = own_rows(num_rows, split.cfg)
    W, T = rows * row_tokens, rows * -(-row_tokens // split.sequence)
    attention, experts = (_fused_bytes if fused else _plain_bytes)(model, T, dtype_bytes, split)
    if grouped:
        experts = _grouped_bytes(model, T, dtype_bytes, split)
    if vae_tiling:
        grid = (min(grid[0], VAE_TILE), min(grid[1], VAE_TILE))
    num_blocks = model.vae.layers_per_block
    in_strips = 1 < split.decode <= grid[0]
    if in_strips:
        grid = (-(-grid[0] // split.decode), grid[1])
    live = live_maps(model, num_blocks + 1, in_strips=in_strips)
    encode = 0.0
    if reference_hw is not None:
        encode = live_maps(model, num_blocks) * max(encoder_map_elements(model, reference_hw))
    return ActivationBytes(
        denoise=2 * (W + T) * model.hidden_size * dtype_bytes + max(attention, experts),
        decode=int(live * max(decoder_map_elements(model, grid)) * vae_dtype_bytes),
        encode=int(encode * vae_dtype_bytes),
    )


def _plain_bytes(model: ModelConfig, T: int, dtype_bytes: int, split: Split) -> tuple[int, int]:
    """Return what attention and what the expert layer hold in plain torch operations."""
    H, A = model.hidden_size, model.num_attention_heads // split.tensor
    q_dim = A * model.attention_head_dim
    attention = T * (model.qkv_dim // split.tensor + 2 * q_dim) * dtype_bytes
    attention += T * (3 * q_dim + _SCORES_PER_HEAD * A) * FLOAT32_BYTES
    E = max(model.num_experts)
    slices = 1 if split.whole_experts else split.tensor
    # The shared expert is as wide as all its shares together.
    expert_width = max(
        max(width // slices, width * shares // split.tensor)
        for width, shares in zip(model.moe_intermediate_size, model.num_shared_expert, strict=True)
    )
    experts = T * (2 * E + 3 * H) * FLOAT32_BYTES
    experts += T * (3 * H + 4 * expert_width) * dtype_bytes
    return attention, experts


def _fused_bytes(model: ModelConfig, T: int, dtype_bytes: int, split: Split) -> tuple[int, int]:
    """Return what attention and what the expert layer hold in the kit's kernels."""
    H, q_dim = model.hidden_size, model.num_attention_heads * model.attention_head_dim
    attention = T * ((model.qkv_dim + 3 * q_dim) // split.tensor) * dtype_bytes
    routed = max(top_k * (H + width) for top_k, width in _routed(model, split))
    return attention, T * (routed + H) * dtype_bytes


def _grouped_bytes(model: ModelConfig, T: int, dtype_bytes: int, split: Split) -> int:
    """Return what an expert layer on an NPU's operators holds."""
    H = model.hidden_size
    routed = max(
        top_k * max(H + 3 * width, 2 * H + width) for top_k, width in _routed(model, split)
    )
    return T * (routed + H) * dtype_bytes + T * 2 * max(model.num_experts) * FLOAT32_BYTES


def _routed(model: ModelConfig, split: Split) -> list[tuple[int, int]]:
    """Return a rank's choices per token and the width of an expert there, of each layer."""
    slices, shares = (1, split.tensor) if split.whole_experts else (split.tensor, 1)
    return [
        (-(-top_k // shares), width // slices)
        for width, top_k in zip(model.moe_intermediate_size, model.moe_topk, strict=True)
    ]
