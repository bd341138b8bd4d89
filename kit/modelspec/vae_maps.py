"""How many elements the feature maps of the autoencoder have, and how many live at once."""

from __future__ import annotations

from kit.modelspec.config import ModelConfig


def live_maps(model: ModelConfig, num_blocks: int, *, in_strips: bool = False) -> float:
    """Return how many maps of the largest size live at once, in a residual block's second half.

    num_blocks: residual blocks of a level.

    The block's input, the first half's result, what is convolved, the result: 4. The level's own
    input where a block follows another: 1. Clips of several frames are copied with neighbouring
    frames side by side, and their frames stacked: 2. The convolution's copy of one frame. A strip
    is copied between its neighbours' rows: 1, and none more for clips. Without blocks a level of
    the encoder holds its input, that folded for the way round, and half a map.
    """
    vae = model.vae
    follows, is_clip = num_blocks > 1, vae.ffactor_temporal > 1
    copies = 2 if is_clip else int(in_strips)
    if num_blocks == 0:
        return 2.5 + copies
    return 4 + (1 if follows else 0) + copies + 1 / vae.ffactor_temporal


def decoder_map_elements(model: ModelConfig, grid: tuple[int, int]) -> list[int]:
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


def encoder_map_elements(model: ModelConfig, pixels_hw: tuple[int, int]) -> list[int]:
    """Return the elements of the feature map at the start of each level of the VAE encoder."""
    vae = model.vae
    first_temporal = vae.num_spatial_steps - vae.num_temporal_steps
    elements = []
    for level, channels in enumerate(vae.block_out_channels):
        scale = 2 ** min(level, vae.num_spatial_steps)
        halved = min(max(0, level - first_temporal), vae.num_temporal_steps)
        frames = vae.ffactor_temporal // 2**halved
        elements.append(channels * frames * (pixels_hw[0] // scale) * (pixels_hw[1] // scale))
    return elements
