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
from kit.modelspec.tensors import Part, expected_tensors

FLOAT32_BYTES = 4

# Feature maps alive at once in the VAE decoder's largest upsampling (convolution's output, repeated
# input, both rearranged, their sum, the next norm): 7.25 by torch's memory profiler on the CPU.
_LIVE_DECODER_MAPS = 7.5

# Keys per tile of the CPU reference kernel, and six running numbers per query and head.
_SCORES_PER_HEAD = 128 + 6


@dataclass(frozen=True)
class ActivationBytes:
    """Estimated working memory of one request, beside weights, keys and values."""

    denoise: int
    """The first denoising step, which computes the most tokens."""

    decode: int
    """The VAE decoder; nothing of a denoising step lives then."""

    @property
    def peak(self) -> int:
        return max(self.denoise, self.decode)


def slot_bytes(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


def kv_token_bytes(model: ModelConfig, dtype_bytes: int, tensor_parallel_size: int = 1) -> int:
    """Return the bytes of one token's keys and values on one rank.

    Raises ConfigError when the ranks cannot share the kv heads evenly.
    """
    heads = model.num_key_value_heads
    if heads % tensor_parallel_size:
        sizes = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ConfigError(
            "tensor_parallel_size",
            f"does not divide the model's {heads} kv heads",
            value=tensor_parallel_size,
            remedy=f"use one of {sizes}",
        )
    return slot_bytes(
        model.num_hidden_layers,
        heads // tensor_parallel_size,
        model.attention_head_dim,
        dtype_bytes,
    )


def page_bytes(token_bytes: int, page_size: int) -> int:
    """Return the bytes of a page of `page_size` slots."""
    return page_size * token_bytes


def num_pages(num_tokens: int, page_size: int) -> int:
    """Return the pages that a row of `num_tokens` tokens takes; the last one may be part empty."""
    return -(-num_tokens // page_size)


def row_bytes(num_tokens: int, token_bytes: int, page_size: int) -> int:
    """Return the bytes that a row of `num_tokens` tokens reserves; contiguous: page_size 1."""
    return num_pages(num_tokens, page_size) * page_bytes(token_bytes, page_size)


def longest_row(model: ModelConfig) -> int:
    """Return the most tokens a row can have."""
    return model.max_position_embeddings


def most_rows(model: ModelConfig) -> int:
    """Return the most CFG rows that a request can have."""
    return 1 if model.cfg_distilled else 2


def automatic_pool_bytes(
    model: ModelConfig,
    *,
    max_num_seqs: int,
    max_rows: int,
    allowed_bytes: int,
    dtype_bytes: int,
    page_size: int,
) -> int:
    """Return the bytes of a page pool that nobody gave a size: a multiple of the page's bytes.

    It holds `max_num_seqs` requests of `max_rows` of the longest rows, or what
    `allowed_bytes` hold if that is less. 0 when that is less than one page.
    """
    token_bytes = kv_token_bytes(model, dtype_bytes)
    bytes_per_page = page_bytes(token_bytes, page_size)
    wanted = max_num_seqs * max_rows * row_bytes(longest_row(model), token_bytes, page_size)
    return min(wanted, max(0, allowed_bytes) // bytes_per_page * bytes_per_page)


def weight_bytes_by_part(
    model: ModelConfig, dtype_bytes: int, *, vae_dtype_bytes: int = FLOAT32_BYTES
) -> Mapping[Part, int]:
    """Return the bytes of the weights that text-to-image loads, per part of the model.

    The router's weights are float32 whatever the rest is, as the official model declares them.
    """
    element_bytes: Mapping[Part, int] = {"router": FLOAT32_BYTES, "vae_decoder": vae_dtype_bytes}
    sizes: dict[Part, int] = {}
    for spec in expected_tensors(model).values():
        if spec.needed_for_t2i:
            num_bytes = math.prod(spec.shape) * element_bytes.get(spec.part, dtype_bytes)
            sizes[spec.part] = sizes.get(spec.part, 0) + num_bytes
    return sizes


def weight_bytes(
    model: ModelConfig, dtype_bytes: int, *, vae_dtype_bytes: int = FLOAT32_BYTES
) -> int:
    """Return the bytes of all weights that text-to-image loads."""
    parts = weight_bytes_by_part(model, dtype_bytes, vae_dtype_bytes=vae_dtype_bytes)
    return sum(parts.values())


def activation_bytes(
    model: ModelConfig,
    *,
    height: int,
    width: int,
    prefix_len: int,
    num_rows: int,
    dtype_bytes: int,
    fused: bool = False,
    vae_dtype_bytes: int = FLOAT32_BYTES,
) -> ActivationBytes:
    """Estimate the working memory of a request of height x width pixels.

    An estimate from the largest tensors that live together; allocators and kernels add their own.
    b bytes per element, T tokens of all rows in the first step, A query heads, H hidden, E experts
    of which a token takes k, I their width; q and qkv are the projections' widths:

        denoise = 4 T H b + max(attention, experts)

        4 T H b     embeddings of the row and of its target, the stream, its normed copy
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

        decode  = 7.5 feature maps of the decoder's largest level

    Sources: the kit's own model and kernels, which follow the official layer and decoder.
    """
    factor = model.vae_downsample_factor
    grid = (height // factor, width // factor)
    T = num_rows * (prefix_len + model.num_special + grid[0] * grid[1])
    attention, experts = (_fused_bytes if fused else _plain_bytes)(model, T, dtype_bytes)
    largest_map = max(_decoder_map_elements(model, grid))
    return ActivationBytes(
        denoise=4 * T * model.hidden_size * dtype_bytes + max(attention, experts),
        decode=int(_LIVE_DECODER_MAPS * largest_map * vae_dtype_bytes),
    )


def _plain_bytes(model: ModelConfig, T: int, dtype_bytes: int) -> tuple[int, int]:
    """Return what attention and what the expert layer hold in plain torch operations."""
    H, A = model.hidden_size, model.num_attention_heads
    q_dim = A * model.attention_head_dim
    attention = T * (model.qkv_dim + 2 * q_dim) * dtype_bytes
    attention += T * (3 * q_dim + _SCORES_PER_HEAD * A) * FLOAT32_BYTES
    E = max(model.num_experts)
    # The shared expert is as wide as all its shares together.
    expert_width = max(
        width * max(1, shares)
        for width, shares in zip(model.moe_intermediate_size, model.num_shared_expert, strict=True)
    )
    experts = T * (2 * E + 3 * H) * FLOAT32_BYTES
    experts += T * (3 * H + 4 * expert_width) * dtype_bytes
    return attention, experts


def _fused_bytes(model: ModelConfig, T: int, dtype_bytes: int) -> tuple[int, int]:
    """Return what attention and what the expert layer hold in the kit's kernels."""
    H, q_dim = model.hidden_size, model.num_attention_heads * model.attention_head_dim
    attention = T * (model.qkv_dim + 3 * q_dim) * dtype_bytes
    routed = max(
        top_k * (H + width)
        for width, top_k in zip(model.moe_intermediate_size, model.moe_topk, strict=True)
    )
    return attention, T * (routed + H) * dtype_bytes


def _decoder_map_elements(model: ModelConfig, grid: tuple[int, int]) -> list[int]:
    """Return the elements of the feature map at the end of each level of the VAE decoder."""
    vae = model.vae
    channels = tuple(reversed(vae.block_out_channels))
    elements = []
    for level, level_channels in enumerate(channels):
        # A level ends with its upsampling, so it has the next level's channels then.
        upsampled = level < vae.num_spatial_steps
        out_channels = channels[level + 1] if upsampled else level_channels
        scale = 2 ** min(level + 1, vae.num_spatial_steps)
        frames = 2 ** min(level + 1, vae.num_temporal_steps)
        elements.append(out_channels * frames * grid[0] * scale * grid[1] * scale)
    return elements
