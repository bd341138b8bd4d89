"""Self-attention of a decoder layer: projections around the keys and values of a StepKV."""

from __future__ import annotations

from torch import Tensor, nn

from kit.attention.base import StepKV
from kit.attention.rotary import QKNorm, Rotary
from kit.model.norm import RMSNorm
from kit.modelspec.config import ModelConfig


class Attention(nn.Module):
    """Grouped-query attention of one layer."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.attention_head_dim
        self.layer = layer
        self.qkv_shape = (config.num_key_value_heads, config.kv_group + 2, head_dim)
        self.qkv_proj = nn.Linear(hidden, config.qkv_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head_dim, hidden, bias=False)
        self.query_layernorm = RMSNorm(head_dim, config.rms_norm_eps)
        self.key_layernorm = RMSNorm(head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, kv: StepKV) -> Tensor:
        """Attend from [B, T, hidden] over the keys of `kv`, which are written first."""
        # Each kv head holds its group of query heads, then its key, then its value.
        qkv = self.qkv_proj(x).unflatten(-1, self.qkv_shape)  # [B, T, K, G+2, D]
        norm = QKNorm(
            self.query_layernorm.weight, self.key_layernorm.weight, self.query_layernorm.eps
        )
        q = kv.write(self.layer, qkv, rotary, norm)
        attended: Tensor = self.o_proj(kv.attend(self.layer, q).flatten(2))  # [B, T, H*D] in
        return attended
