"""What is trained beside the denoiser to read reference images: vision tower and aligner.

The autoencoder's encoder, which reads them too, is trained before and stays as it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kit.model.vision import SelfAttention, VisionAligner, VisionMLP, VisionTower
from kit.modelspec.config import ModelConfig
from kit.modelspec.vision import VisionConfig

_POSITION_STD = 0.5
_TOKEN_STD = 0.5
"""About that of the token table's rows."""


class VisionReader(nn.Module):
    """Patches of reference images to tokens of the transformer; named as in a checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert isinstance(config.vision, VisionConfig), "the checkpoint takes references"
        self.vision_model = VisionTower(config.vision)
        self.vision_aligner = VisionAligner(config.vision, config.hidden_size)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map float32 [B, rows * columns, patch_dim] to [B, max_num_patches, hidden]."""
        tokens: Tensor = self.vision_aligner(self.vision_model(patches, grid))
        return tokens

    def matrix_modules(self) -> list[nn.Module]:
        """Return the modules whose matrices lie inside the network."""
        return [self.vision_model.encoder, self.vision_aligner]


@torch.no_grad()
def init_reader(reader: VisionReader) -> None:
    """Fill the tower and the aligner in place, at random."""
    branch_gain = 1 / math.sqrt(2 * reader.vision_model.config.num_hidden_layers)
    for part in reader.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(std=part.in_features**-0.5)
            part.bias.zero_()
        if isinstance(part, nn.Embedding):
            part.weight.normal_(std=_POSITION_STD)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    for part in reader.modules():
        # Every layer adds two branches to the residual stream.
        if isinstance(part, SelfAttention):
            part.out_proj.weight.mul_(branch_gain)
        if isinstance(part, VisionMLP):
            part.fc2.weight.mul_(branch_gain)
    last = reader.vision_aligner.layers[2]
    assert isinstance(last, nn.Linear)
    last.weight.mul_(_TOKEN_STD)
