"""Vision tower and aligner, and the draw of latents, against the reference implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_cases import GOLDEN, case_images, load_case
from safetensors.torch import load_file
from torch import Tensor

from kit.model.loader import load_reference_encoder
from kit.model.reference_encoder import ReferenceEncoder
from kit.modelspec.config import ModelConfig, load_model_config
from kit.pipeline.noise import seed_generator
from kit.pipeline.references import sample_posterior
from kit.request import ReferenceImage

CPU, LIMIT = torch.device("cpu"), 1e-4


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


@pytest.fixture(scope="module")
def encoder(checkpoint: Path, model: ModelConfig) -> ReferenceEncoder:
    return load_reference_encoder(
        checkpoint, model, device=CPU, dtype=torch.float32, vae_dtype=torch.float32
    )


@pytest.fixture(scope="module")
def pictures() -> tuple[ReferenceImage, ...]:
    return case_images(load_case("ti2i_ref2_square").inputs)


@pytest.fixture(scope="module")
def wanted() -> dict[str, Tensor]:
    return load_file(load_case("ti2i_ref2_square").tensors_path)


@torch.inference_mode()
def test_tokens_against_reference(
    encoder: ReferenceEncoder, pictures: tuple[ReferenceImage, ...], wanted: dict[str, Tensor]
) -> None:
    """The second picture has 50 patches of 64: its padding is compared as well."""
    for index, picture in enumerate(pictures):
        tokens = encoder.patch_tokens(torch.tensor(picture.patch_pixels))
        golden = wanted[f"ref{index}.vit_aligned_embeds"]
        torch.testing.assert_close(tokens, golden, atol=LIMIT, rtol=0)


@torch.inference_mode()
def test_latents_are_drawn_one_reference_after_the_other(
    encoder: ReferenceEncoder,
    pictures: tuple[ReferenceImage, ...],
    wanted: dict[str, Tensor],
    model: ModelConfig,
) -> None:
    generator = seed_generator(100)
    for index, picture in enumerate(pictures):
        moments = encoder.moments(torch.tensor(picture.latent_pixels))
        golden = wanted[f"ref{index}.vae_moments"][:, :, 0]
        torch.testing.assert_close(moments, golden, atol=LIMIT, rtol=0)
        latents = sample_posterior(moments, model.vae, generator)[0]
        torch.testing.assert_close(latents, wanted[f"ref{index}.cond_latents"], atol=LIMIT, rtol=0)


def test_a_draw_against_the_recorded_module(model: ModelConfig) -> None:
    golden = load_file(GOLDEN / "modules.safetensors")
    moments, noise = golden["vae.moments"][:, :, 0], golden["vae.sample_noise"][:, :, 0]
    mean, log_variance = moments.chunk(2, dim=1)
    latents = (mean + (log_variance / 2).exp() * noise) * model.vae.scaling_factor
    torch.testing.assert_close(latents, golden["vae.latents_scaled"][:, :, 0], atol=LIMIT, rtol=0)
    drawn = sample_posterior(moments, model.vae, seed_generator(3))
    own = torch.randn(mean.shape, generator=seed_generator(3))
    torch.testing.assert_close(
        drawn, (mean + (log_variance / 2).exp() * own) * model.vae.scaling_factor
    )


@torch.inference_mode()
def test_padding_is_no_key(encoder: ReferenceEncoder) -> None:
    """Real patches of the tower have the same vectors however many are missing."""
    tower = encoder.vision_model
    patches = torch.randn(2, 6, tower.config.patch_dim, generator=seed_generator(0))
    padded = tower(patches, (2, 3))[:, :6]
    exact = tower.embeddings(patches, (2, 3))
    for layer in tower.encoder["layers"].children():
        exact = layer(exact, 6)
    torch.testing.assert_close(padded, tower.post_layernorm(exact), atol=1e-5, rtol=0)
