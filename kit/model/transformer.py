"""The diffusion transformer: embeddings, decoder layers, prediction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kit.attention.base import StepKV
from kit.attention.rotary import Rotary
from kit.model.attention import Attention
from kit.model.final_layer import FinalLayer
from kit.model.moe import MoE
from kit.model.norm import RMSNorm
from kit.model.patch_embed import PatchEmbed
from kit.model.shard import WHOLE, Shard, all_tokens, own_tokens
from kit.model.timestep import TimestepEmbedder
from kit.modelspec.config import ModelConfig


class DecoderLayer(nn.Module):
    """Pre-norm attention and mixture of experts, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int, shard: Shard = WHOLE) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer, shard)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MoE(
            config.hidden_size,
            config.moe_intermediate_size[layer],
            config.num_experts[layer],
            config.moe_topk[layer],
            config.num_shared_expert[layer],
            shard,
        )

    def forward(self, x: Tensor, rotary: Rotary, kv: StepKV) -> Tensor:
        """Map [B, T, hidden] to [B, T, hidden]; writes the layer's keys and values to `kv`."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, kv)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Token embedding and decoder layers."""

    def __init__(self, config: ModelConfig, shard: Shard = WHOLE) -> None:
        super().__init__()
        vocab_size, hidden_size = config.vocab_size, config.hidden_size
        # Without a weight it draws one, which on the meta device imports torch's compiler: seconds.
        self.wte = nn.Embedding(
            vocab_size, hidden_size, _weight=torch.empty(vocab_size, hidden_size)
        )
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, shard) for layer in range(config.num_hidden_layers)
        )

    def forward(self, x: Tensor, rotary: Rotary, kv: StepKV) -> Tensor:
        """Run all layers on [B, T, hidden]; the image path has no final norm."""
        for layer in self.layers:
            x = layer(x, rotary, kv)
        return x


class HunyuanImage3(nn.Module):
    """HunyuanImage-3.0 as a denoiser. Submodule names are the checkpoint's.

    Runs in the dtype of its weights, with the reference's float32 islands: norms' inner
    arithmetic, rotation, router, sinusoids, and the returned prediction. Ranks share the layers as
    `shard` says; what lies before and after them is whole on every rank, as are its results.
    """

    def __init__(self, config: ModelConfig, shard: Shard = WHOLE) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        self.model = Backbone(config, shard)
        self.patch_embed = PatchEmbed(config)
        self.final_layer = FinalLayer(config)
        # Three embedders of the same timestep: for the token, patch_embed and final_layer.
        self.timestep_emb = TimestepEmbedder(config.hidden_size)
        self.time_embed = TimestepEmbedder(config.hidden_size)
        self.time_embed_2 = TimestepEmbedder(config.hidden_size)
        # Tokens of distilled models.
        self.guidance_emb = TimestepEmbedder(config.hidden_size) if config.cfg_distilled else None
        self.timestep_r_emb = TimestepEmbedder(config.hidden_size) if config.use_meanflow else None

    @property
    def device(self) -> torch.device:
        """Where the weights are, so where inputs must be."""
        return self.model.wte.weight.device

    def embed_tokens(self, token_ids: Tensor) -> Tensor:
        """Look up int64 [B, T]; returns [B, T, hidden]."""
        embeds: Tensor = self.model.wte(token_ids)
        return embeds

    def embed_target(
        self, latents: Tensor, timestep: Tensor, guidance: Tensor | None, timestep_r: Tensor | None
    ) -> Tensor:
        """Embed the target of one request; its rows share the result [s + h*w, hidden].

        latents float32 [1, C, h, w]; the others are sinusoids float32 [1, 256] of scalars: timestep
        and timestep_r of sigma * 1000, guidance of `guidance_token_value`. Order: <timestep>,
        <guidance>, <timestep_r> as far as the model has them, image tokens row-major. guidance
        and timestep_r are None exactly for models without the token.
        """
        specials = [self.timestep_emb(timestep)]
        for embedder, wave in (
            (self.guidance_emb, guidance),
            (self.timestep_r_emb, timestep_r),
        ):
            assert (embedder is None) == (wave is None), "a value for every token, and no other"
            if embedder is not None:
                specials.append(embedder(wave))
        image = self.patch_embed(latents, self.time_embed(timestep))  # [1, h*w, hidden]
        return torch.cat((*specials, image[0]))

    def forward(self, embeds: Tensor, rotary: Rotary, kv: StepKV) -> Tensor:
        """Map [B, T, hidden] to [B, T, hidden]; writes T keys and values per layer to `kv`."""
        ulysses = self.shard.ulysses
        hidden = self.model(own_tokens(embeds, ulysses), rotary, kv)
        return all_tokens(hidden, ulysses, embeds.shape[1])

    def predict(self, image_hidden: Tensor, timestep: Tensor, grid: tuple[int, int]) -> Tensor:
        """Turn hidden states [B, h*w, hidden] of the image tokens into float32 [B, C, h, w].

        timestep is its sinusoid, float32 [1, 256]. The result is the velocity from data to noise.
        """
        prediction: Tensor = self.final_layer(image_hidden, self.time_embed_2(timestep), grid)
        return prediction
