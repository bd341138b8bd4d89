"""Batched sampling against the engine that serves the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.bpe import SPECIAL_TOKENS
from kit.checkpoint.dit_forward import TrainingForward
from kit.checkpoint.export import bfloat16_tensors, denoiser_tensors, export_checkpoint
from kit.checkpoint.flat_vae import FlatVAE
from kit.checkpoint.initial import init_vae
from kit.checkpoint.official_config import generation_config, tokenizer_config
from kit.checkpoint.preset import TOY
from kit.checkpoint.sampling import Sampler, save_sheet
from kit.model.transformer import HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.model.vae_encoder import VAEEncoder
from kit.modelspec.config import ModelConfig
from kit.tokenizer.tokenizer import Tokenizer

PROMPTS = ("a red cup on the grass", "TWO STARS")


@pytest.fixture
def exported(
    tmp_path: Path, toy_folder: Path, random_model: HunyuanImage3
) -> tuple[Path, HunyuanImage3, FlatVAE]:
    """A checkpoint of random weights, and the modules with the values that it holds."""
    config = random_model.config
    encoder, decoder = VAEEncoder(config.vae), VAEDecoder(config.vae)
    tensors = denoiser_tensors(random_model)
    for part, module in (("encoder", encoder), ("decoder", decoder)):
        init_vae(module)
        named = {f"vae.{part}.{name}": value for name, value in module.state_dict().items()}
        tensors |= bfloat16_tensors(named)
    ids = {token: at for at, token in enumerate(SPECIAL_TOKENS)}
    small = {
        name: json.loads((toy_folder / name).read_text())
        for name in ("config.json", "tokenizer.json")
    }
    small["tokenizer_config.json"] = tokenizer_config()
    small["generation_config.json"] = generation_config(TOY, ids, takes_references=False)
    export_checkpoint(tmp_path / "checkpoint", tensors, small)
    with torch.no_grad():
        for module in (random_model, decoder):
            for parameter in module.parameters():
                is_router = parameter.shape[0] == config.num_experts[0] and parameter.dim() == 2
                parameter.copy_(parameter if is_router else parameter.bfloat16())
    return tmp_path / "checkpoint", random_model, FlatVAE(encoder, decoder)


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_sampling_against_the_engine(
    guidance_scale: float,
    exported: tuple[Path, HunyuanImage3, FlatVAE],
    toy_config: ModelConfig,
    toy_tokenizer: Tokenizer,
) -> None:
    folder, model, flat = exported
    assert model.config == toy_config
    forward = TrainingForward(model, TOY.shape.sequence_slots)
    sampler = Sampler(forward, flat, toy_tokenizer, num_steps=3, guidance_scale=guidance_scale)
    size = (192, 320)
    sampling = SamplingParams(*size, 3, guidance_scale, seed=11)
    with ImageEngine(folder, load_config(folder)) as engine:
        for prompt in PROMPTS:
            (drawn,) = sampler.draw([prompt], size, seed=11)
            wanted = engine.generate(GenerationRequest(prompt, sampling)).image
            difference = np.abs(drawn.astype(int) - wanted.astype(int))
            assert difference.max() <= 1
            assert wanted.std() > 1


def test_a_sheet_shows_all_pictures(tmp_path: Path) -> None:
    pictures = [np.full((4, 6, 3), at * 50, np.uint8) for at in range(3)]
    save_sheet(pictures, tmp_path / "sheet.png", 2)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (8, 12, 3)
    assert [int(sheet[y, x, 0]) for y, x in ((0, 0), (0, 6), (4, 0), (4, 6))] == [0, 50, 100, 255]
