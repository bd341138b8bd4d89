"""Image tokens to the predicted velocity."""

from __future__ import annotations

from torch import Tensor, nn

from kit.model.group_norm import GroupNorm
from kit.model.resblock import EPS, ResBlock
from kit.modelspec.config import ModelConfig


class FinalLayer(nn.Module):
    """A modulated residual block, then norm, SiLU and a convolution to latent channels."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels, width = config.vae.latent_channels, config.patch_embed_hidden_dim
        block = ResBlock(config.hidden_size, width, config.hidden_size)
        head = nn.Sequential(
            GroupNorm(width, EPS),
            nn.SiLU(),
            nn.Conv2d(width, channels, 3, padding=1),
        )
        self.model = nn.ModuleList([block, head])

    def forward(self, tokens: Tensor, emb: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map [B, h*w, hidden] and emb [B or 1, hidden] to float32 [B, C, h, w]."""
        # Contiguous, because the channels-last group norm of PyTorch's CPU backend loses two
        # digits over groups of this size.
        x = tokens.transpose(1, 2).contiguous().view(len(tokens), -1, *grid)  # [B, hidden, h, w]
        block, head = self.model
        prediction: Tensor = head(block(x, emb))
        return prediction.float()
