"""The vision tower of reference images (SigLIP2, NaFlex), and the aligner behind it.

Submodule names are the checkpoint's. The tower's pooling head is not there: the model reads the
patches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.modelspec.vision import VisionConfig


class PatchEmbeddings(nn.Module):
    """Patches to vectors, and learned positions on a square grid, resized to the image's."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.side = config.position_side
        num, width = self.side**2, config.hidden_size
        self.patch_embedding = nn.Linear(config.patch_dim, width)
        self.position_embedding = nn.Embedding(num, width, _weight=torch.empty(num, width))

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map float32 [B, T, patch_dim] to [B, T, width]; `grid` counts the first ones of T,
        row-major.
        """
        square = self.position_embedding.weight.float().T.reshape(-1, self.side, self.side)
        # [1, width, side, side] -> [1, width, rows, columns]; in float32, as the reference does
        resized = F.interpolate(
            square[None], grid, mode="bilinear", align_corners=False, antialias=True
        )
        positions = resized[0].flatten(1).T  # [rows * columns, width]
        # Padding has the position of the first patch.
        padding = positions[:1].expand(patches.shape[1] - len(positions), -1)
        embedded: Tensor = self.patch_embedding(patches.to(self.patch_embedding.weight.dtype))
        return embedded + torch.cat((positions, padding)).to(embedded.dtype)


class SelfAttention(nn.Module):
    """Attention of all tokens to the first ones; padding is no key."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x: Tensor, num_keys: int) -> Tensor:
        """Map [B, T, width] to the same shape."""
        keys = x[:, :num_keys]
        q, k, v = (
            proj(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, D]
            for proj, part in ((self.q_proj, x), (self.k_proj, keys), (self.v_proj, keys))
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


class VisionMLP(nn.Module):
    """Two linear layers around GELU in its tanh form."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, width] to the same shape."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class VisionLayer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (
            nn.LayerNorm(config.hidden_size, config.layer_norm_eps) for _ in range(2)
        )
        self.self_attn = SelfAttention(config)
        self.mlp = VisionMLP(config)

    def forward(self, x: Tensor, num_keys: int) -> Tensor:
        """Map [B, T, width] to the same shape."""
        x = x + self.self_attn(self.layer_norm1(x), num_keys)
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class VisionTower(nn.Module):
    """Patches of images to vectors, those of the padding included."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = PatchEmbeddings(config)
        self.encoder = nn.ModuleDict(
            {"layers": nn.ModuleList(VisionLayer(config) for _ in range(config.num_hidden_layers))}
        )
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map float32 [B, rows * columns, patch_dim], row-major, to [B, max_num_patches, width].

        All B images have one grid. What is missing is padded with zeros: the transformer reads all
        of it.
        """
        num_patches = patches.shape[1]
        missing = self.config.max_num_patches - num_patches
        x = self.embeddings(F.pad(patches, (0, 0, 0, missing)), grid)
        layers = self.encoder["layers"]
        assert isinstance(layers, nn.ModuleList), "made so"
        for layer in layers:
            x = layer(x, num_patches)
        out: Tensor = self.post_layernorm(x)
        return out


class VisionAligner(nn.Module):
    """Vectors of the tower to tokens of the transformer: two linear layers around exact GELU."""

    def __init__(self, config: VisionConfig, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(config.hidden_size, hidden_size),
            nn.GELU(approximate="none"),
            nn.Linear(hidden_size, hidden_size),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, width] to [B, T, hidden]."""
        out: Tensor = self.layers(x)
        return out


def cut_patches(pixels: Tensor, patch_size: int) -> tuple[Tensor, tuple[int, int]]:
    """Cut uint8 [B, rows * p, columns * p, 3] into patches in [-1, 1], row-major.

    Returns float32 [B, rows * columns, 3 * p * p] and (rows, columns).
    """
    p = patch_size
    B, height, width, _ = pixels.shape
    grid = (height // p, width // p)
    unit = (pixels.float() / 255 - 0.5) / 0.5
    # [B, rows, p, columns, p, 3] -> [B, rows, columns, p, p, 3]
    patches = unit.reshape(B, grid[0], p, grid[1], p, 3).transpose(2, 3)
    return patches.flatten(1, 2).flatten(2), grid
