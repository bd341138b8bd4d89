"""The encoder against the reference implementation, and its way down against the decoder's up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_cases import GOLDEN
from safetensors.torch import load_file

from kit.model.loader import official_views
from kit.model.vae_blocks import depth_to_space
from kit.model.vae_encoder import VAEEncoder, space_to_depth
from kit.modelspec.config import load_model_config


def test_encode_against_reference(checkpoint: Path) -> None:
    golden = load_file(GOLDEN / "modules.safetensors")
    config = load_model_config(checkpoint)
    encoder = VAEEncoder(config.vae).requires_grad_(False)
    stored: dict[str, torch.Tensor] = {}
    for shard in sorted(checkpoint.glob("*.safetensors")):
        stored |= load_file(shard)
    names = {name for name in stored if name.startswith("vae.encoder.")}
    views = {f"vae.encoder.{name}": view for name, view in official_views(encoder)}
    assert set(views) == names
    for name, view in views.items():
        view.copy_(stored[name].float())
    image = golden["vae.image"]
    image = image[:, :, 0] if image.dim() == 5 else image
    moments = encoder(image)
    wanted = golden["vae.moments"]
    torch.testing.assert_close(moments, wanted[:, :, 0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("time_factor", [1, 2])
def test_space_to_depth_is_the_inverse_of_depth_to_space(time_factor: int) -> None:
    x = torch.arange(2 * 3 * 4 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 4, 6)
    folded = space_to_depth(x, time_factor)
    assert folded.shape == (2, 3 * 4 * time_factor, 4 // time_factor, 2, 3)
    assert torch.equal(depth_to_space(folded, time_factor), x)
