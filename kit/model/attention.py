"""Self-attention of a decoder layer: projections around the keys and values of a StepKV."""

from __future__ import annotations

from torch import Tensor, nn

from kit.attention.base import StepKV
from kit.attention.rotary import QKNorm, Rotary
from kit.model.norm import RMSNorm
from kit.model.shard import (
    WHOLE,
    Shard,
    heads_to_tokens,
    sliced_inputs,
    sliced_outputs,
    tokens_to_heads,
)
from kit.modelspec.config import ModelConfig


class Attention(nn.Module):
    """Grouped-query attention of one layer; tensor ranks share its kv heads with their queries."""

    def __init__(self, config: ModelConfig, layer: int, shard: Shard = WHOLE) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.attention_head_dim
        self.layer, self.shard = layer, shard
        self.qkv_shape = (-1, config.kv_group + 2, head_dim)
        self.qkv_proj = sliced_outputs(hidden, config.qkv_dim, shard.tensor)
        self.o_proj = sliced_inputs(config.num_attention_heads * head_dim, hidden, shard.tensor)
        self.query_layernorm = RMSNorm(head_dim, config.rms_norm_eps)
        self.key_layernorm = RMSNorm(head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, kv: StepKV) -> Tensor:
        """Attend from [B, T, hidden] over the keys of `kv`, which are written first.

        Of Ulysses ranks each has its own tokens in x; `rotary` is of all tokens of the pass.
        """
        ulysses = self.shard.ulysses
        # Each kv head holds its group of query heads, then its key, then its value.
        qkv = self.qkv_proj(x).unflatten(-1, self.qkv_shape)  # [B, T, K, G+2, D]
        qkv = tokens_to_heads(qkv, ulysses, len(rotary.cos))
        norm = QKNorm(
            self.query_layernorm.weight, self.key_layernorm.weight, self.query_layernorm.eps
        )
        q = kv.write(self.layer, qkv, rotary, norm)
        attended = heads_to_tokens(kv.attend(self.layer, q), ulysses)
        return self.shard.tensor.sum_(self.o_proj(attended.flatten(2)))  # [B, T, H*D] in
