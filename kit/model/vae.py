"""The decoder of the autoencoder: latents to pixels."""

from __future__ import annotations

from torch import Tensor, nn

from kit.model.clip_conv import ClipConv3d
from kit.model.group_norm import GroupNorm
from kit.model.vae_blocks import EPS, AttnBlock, ResnetBlock, Upsample
from kit.modelspec.config import VAEConfig
from kit.parallel.group import ALONE, RankGroup
from kit.parallel.strips import ALL_ROWS, Strips, divide_rows


class Mid(nn.Module):
    """The blocks at latent resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1 = ResnetBlock(channels, channels)
        self.attn_1 = AttnBlock(channels)
        self.block_2 = ResnetBlock(channels, channels)

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C, T, H, W] to the same shape."""
        for part in (self.block_1, self.attn_1, self.block_2):
            x = part(x, strips)
        return x


class UpLevel(nn.Module):
    """Residual blocks at one resolution, then the way to the next one."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            ResnetBlock(in_channels if i == 0 else channels, channels) for i in range(num_blocks)
        )
        self.upsample: Upsample | None = None

    def forward(self, x: Tensor, strips: Strips = ALL_ROWS) -> Tensor:
        """Map [B, C_in, T, H, W] to the next level's clip."""
        for block in self.block:
            x = block(x, strips)
        return x if self.upsample is None else self.upsample(x, strips)


class VAEDecoder(nn.Module):
    """Turns the latent of one image into a clip of ffactor_temporal frames; the last is the image.

    The autoencoder was made for video; an image is encoded as a clip of equal frames.

    Ranks that decode together have a strip of rows each: a convolution reads a row of each
    neighbour, group norms and attention read all, and all get the image.
    """

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.block_out_channels[::-1]
        self.repeats = widths[0] // config.latent_channels
        self.conv_in = ClipConv3d(config.latent_channels, widths[0])
        self.mid = Mid(widths[0])
        self.up = nn.ModuleList()
        width = widths[0]
        for i, level_width in enumerate(widths):
            level = UpLevel(width, level_width, config.layers_per_block + 1)
            width = level_width
            if i < config.num_spatial_steps:
                temporal = i < config.num_temporal_steps
                level.upsample = Upsample(width, widths[i + 1], temporal=temporal)
                width = widths[i + 1]
            self.up.append(level)
        self.norm_out = GroupNorm(width, EPS)
        self.conv_out = ClipConv3d(width, config.out_channels)

    def forward(self, latents: Tensor, ranks: RankGroup = ALONE) -> Tensor:
        """Decode scaled float32 [B, C, h, w] to the image, float32 [B, 3, f*h, f*w].

        f is ffactor_spatial; pixel values are around [-1, 1], not clamped. `ranks` decode the same
        latents together.
        """
        strips = divide_rows(ranks, latents.shape[-2])
        strip = self.conv_out.last_frame(self._features(latents, strips), strips)
        return strips.gather_rows(strip).float()

    def decode_clip(self, latents: Tensor) -> Tensor:
        """Decode as forward does, all frames: float32 [B, 3, ffactor_temporal, f*h, f*w]."""
        strips = divide_rows(ALONE, latents.shape[-2])
        clip: Tensor = self.conv_out(self._features(latents, strips), strips)
        return clip.float()

    def _features(self, latents: Tensor, strips: Strips) -> Tensor:
        """Run all but the last convolution; group norms keep every frame in play until here."""
        z = strips.own(latents) / self.config.scaling_factor + (self.config.shift_factor or 0.0)
        z = z.to(self.conv_in.weight.dtype)[:, :, None]  # [B, C, 1, h, w]
        x = self.mid(self.conv_in(z, strips) + z.repeat_interleave(self.repeats, dim=1), strips)
        for level in self.up:
            x = level(x, strips)
        return self.norm_out.silu(x, strips)
