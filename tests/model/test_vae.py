"""The decoder against the reference implementation, and against plain 3-D convolutions."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from golden_cases import load_case
from safetensors.torch import load_file
from torch import Tensor, nn

from kit.model.clip_conv import ClipConv3d
from kit.model.vae import VAEDecoder
from kit.modelspec.config import ModelConfig, VAEConfig
from kit.parallel.strips import ALL_ROWS, Strips


def random_decoder(config: VAEConfig) -> VAEDecoder:
    decoder = VAEDecoder(config)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.copy_(noise / 10 + (0 if name.endswith("bias") else 1))
        else:
            parameter.copy_(noise / parameter[0].numel() ** 0.5)
    return decoder


class PlainConv(nn.Conv3d):
    def forward(self, x: Tensor, _: Strips = ALL_ROWS) -> Tensor:
        return super().forward(x)


def with_plain_convolutions(decoder: VAEDecoder) -> VAEDecoder:
    """The same decoder with PyTorch's Conv3d in place of every convolution."""
    plain = copy.deepcopy(decoder)
    for module in list(plain.modules()):
        for name, child in module.named_children():
            if isinstance(child, ClipConv3d):
                out_channels, in_channels, kernel = child.weight.shape[:3]
                conv = PlainConv(in_channels, out_channels, kernel, padding=kernel // 2)
                conv.load_state_dict(child.state_dict())
                setattr(module, name, conv)
    return plain


def test_decode_against_reference(golden: dict[str, Tensor], vae_decoder: VAEDecoder) -> None:
    latents = golden["vae.decode_latents_scaled"][:, :, 0]
    clip = vae_decoder.decode_clip(latents)
    torch.testing.assert_close(clip, golden["vae.decoder_all_frames"], rtol=0, atol=2e-5)
    image = vae_decoder(latents)
    torch.testing.assert_close(image, golden["vae.decoded"][:, :, 0], rtol=0, atol=2e-5)


def test_decode_of_a_case_against_reference(vae_decoder: VAEDecoder) -> None:
    tensors = load_file(load_case("t2i_pretrain_square").tensors_path)
    image = vae_decoder(tensors["step4.latents_out"])
    torch.testing.assert_close(image, tensors["vae_decode_out"][:, :, 0], rtol=0, atol=5e-5)


@pytest.mark.parametrize("ffactor_temporal", [1, 2, 4])
@pytest.mark.parametrize("layers_per_block", [0, 1, 2])
def test_decode_against_plain_convolutions(ffactor_temporal: int, layers_per_block: int) -> None:
    config = VAEConfig(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(32, 32, 64, 64),
        layers_per_block=layers_per_block,
        ffactor_spatial=8,
        ffactor_temporal=ffactor_temporal,
        scaling_factor=0.5,
        shift_factor=None,
    )
    decoder = random_decoder(config)
    latents = torch.randn(1, 4, 3, 2, generator=torch.Generator().manual_seed(6))
    clip = decoder.decode_clip(latents)
    assert clip.shape == (1, 3, ffactor_temporal, 24, 16)
    wanted = with_plain_convolutions(decoder).decode_clip(latents)
    torch.testing.assert_close(clip, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(decoder(latents), wanted[:, :, -1], rtol=0, atol=1e-5)


def test_level_without_upsample_changes_width_by_a_shortcut() -> None:
    config = VAEConfig(3, 3, 4, (32, 64, 32), 0, 2, 1, 1.0, None)
    decoder = random_decoder(config)
    shortcuts = [name for name, _ in decoder.named_parameters() if "nin_shortcut.weight" in name]
    assert shortcuts == ["up.2.block.0.nin_shortcut.weight"]
    assert decoder(torch.zeros(1, 4, 3, 3)).shape == (1, 3, 6, 6)


def test_latents_are_divided_by_the_factor_then_shifted(vae_decoder: VAEDecoder) -> None:
    latents = torch.randn(1, 8, 2, 3, generator=torch.Generator().manual_seed(7))
    shifted = copy.deepcopy(vae_decoder)
    shifted.config = replace(vae_decoder.config, scaling_factor=2.0, shift_factor=0.25)
    factor = vae_decoder.config.scaling_factor
    same_input = (latents / 2.0 + 0.25) * factor
    torch.testing.assert_close(shifted(latents), vae_decoder(same_input), rtol=0, atol=1e-5)


def test_bfloat16_decoder_returns_float32(
    golden: dict[str, Tensor], vae_decoder: VAEDecoder
) -> None:
    rounded = copy.deepcopy(vae_decoder).bfloat16()
    image = rounded(golden["vae.decode_latents_scaled"][:, :, 0])
    assert image.dtype == torch.float32
    wanted = golden["vae.decoded"][:, :, 0]
    assert (image - wanted).norm() / wanted.norm() < 0.05


def test_parameter_count_of_the_published_decoder(official_config: ModelConfig) -> None:
    with torch.device("meta"):
        decoder = VAEDecoder(official_config.vae)
    assert sum(p.numel() for p in decoder.parameters()) == 871_332_483
