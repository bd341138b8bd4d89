"""The modules that read reference images, together."""

from __future__ import annotations

from torch import Tensor, nn

from kit.model.vae_encoder import VAEEncoder
from kit.model.vision import VisionAligner, VisionTower, cut_patches
from kit.modelspec.config import ModelConfig
from kit.modelspec.vision import VisionConfig


class ReferenceEncoder(nn.Module):
    """Autoencoder's encoder, vision tower and aligner; each in a dtype of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert isinstance(config.vision, VisionConfig), "only such checkpoints take references"
        self.vae_encoder = VAEEncoder(config.vae)
        self.vision_model = VisionTower(config.vision)
        self.vision_aligner = VisionAligner(config.vision, config.hidden_size)

    def moments(self, pixels: Tensor) -> Tensor:
        """Encode uint8 [H, W, 3] to the posterior's moments, see VAEEncoder.forward."""
        unit = (pixels.permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5
        moments: Tensor = self.vae_encoder(unit)
        return moments

    def patch_tokens(self, pixels: Tensor) -> Tensor:
        """Turn uint8 [rows * p, columns * p, 3] into tokens [max_num_patches, hidden]."""
        patches, grid = cut_patches(pixels[None], self.vision_model.config.patch_size)
        tokens: Tensor = self.vision_aligner(self.vision_model(patches, grid))
        return tokens[0]
