"""Convolutional residual block that a scalar's embedding modulates."""

from __future__ import annotations

from torch import Tensor, nn

from kit.model.group_norm import GroupNorm

EPS = 1e-5


class ResBlock(nn.Module):
    """out = skip(x) + conv(silu(norm(conv(silu(norm(x)))) * (1 + scale) + shift)).

    Submodule names are the checkpoint's.
    """

    def __init__(self, in_channels: int, out_channels: int, emb_channels: int) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            GroupNorm(in_channels, EPS),
            nn.SiLU(),
            nn.Conv2d(in_channels, out_channels, 3, padding=1),
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb_channels, 2 * out_channels))
        self.out_layers = nn.Sequential(
            GroupNorm(out_channels, EPS),
            nn.SiLU(),
            nn.Identity(),  # the reference's dropout: keeps the convolution at index 3
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        )
        self.skip_connection: nn.Module = (
            nn.Identity()
            if in_channels == out_channels
            else nn.Conv2d(in_channels, out_channels, 1)
        )

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        """Map [B, C_in, h, w] to [B, C_out, h, w]; emb [B or 1, C_emb] modulates all places."""
        scale, shift = self.emb_layers(emb)[..., None, None].chunk(2, dim=1)
        norm, rest = self.out_layers[0], self.out_layers[1:]
        h = norm(self.in_layers(x)) * (1 + scale) + shift
        out: Tensor = self.skip_connection(x) + rest(h)
        return out
