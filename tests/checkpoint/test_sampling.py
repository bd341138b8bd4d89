"""Batched sampling against the engine that serves the checkpoint."""

from __future__ import annotations

import io
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
from kit.checkpoint.render import render
from kit.checkpoint.sampling import Sampler, save_sheet
from kit.checkpoint.scenes import random_scene
from kit.checkpoint.vision_reader import VisionReader
from kit.model.transformer import HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.model.vae_encoder import VAEEncoder
from kit.modelspec.config import ModelConfig
from kit.tokenizer.tokenizer import Tokenizer

PROMPTS = ("a red cup on the grass", "TWO STARS")


@pytest.fixture
def exported(
    tmp_path: Path, toy_folder: Path, random_model: HunyuanImage3, random_reader: VisionReader
) -> tuple[Path, HunyuanImage3, FlatVAE]:
    """A checkpoint of random weights, and the modules with the values that it holds."""
    config = random_model.config
    encoder, decoder = VAEEncoder(config.vae), VAEDecoder(config.vae)
    tensors = denoiser_tensors(random_model)
    for part, module in (("encoder", encoder), ("decoder", decoder)):
        init_vae(module)
        named = {f"vae.{part}.{name}": value for name, value in module.state_dict().items()}
        tensors |= bfloat16_tensors(named)
    tensors |= bfloat16_tensors(dict(random_reader.named_parameters()))
    ids = {token: at for at, token in enumerate(SPECIAL_TOKENS)}
    small = {
        name: json.loads((toy_folder / name).read_text())
        for name in ("config.json", "tokenizer.json")
    }
    small["tokenizer_config.json"] = tokenizer_config()
    small["generation_config.json"] = generation_config(TOY, ids, takes_references=True)
    export_checkpoint(tmp_path / "checkpoint", tensors, small)
    with torch.no_grad():
        for network in (random_model, random_reader, decoder, encoder):
            for parameter in network.parameters():
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
    sampler = Sampler(
        forward,
        flat,
        toy_tokenizer,
        num_steps=3,
        guidance_scale=guidance_scale,
        template="instruct",
    )
    size = (192, 320)
    sampling = SamplingParams(*size, 3, guidance_scale, seed=11)
    with ImageEngine(folder, load_config(folder)) as engine:
        for prompt in PROMPTS:
            (drawn,) = sampler.draw([prompt], size, seed=11)
            wanted = engine.generate(GenerationRequest(prompt, sampling)).image
            difference = np.abs(drawn.astype(int) - wanted.astype(int))
            assert difference.max() <= 1
            assert wanted.std() > 1


@pytest.mark.parametrize(("guidance_scale", "size"), [(1.0, (256, 256)), (3.0, (192, 320))])
def test_editing_against_the_engine(
    guidance_scale: float,
    size: tuple[int, int],
    exported: tuple[Path, HunyuanImage3, FlatVAE],
    random_reader: VisionReader,
    toy_tokenizer: Tokenizer,
) -> None:
    folder, model, flat = exported
    shape = TOY.shape
    forward = TrainingForward(
        model, shape.sequence_slots, reader=random_reader, num_edit_slots=shape.edit_slots
    )
    sampler = Sampler(forward, flat, toy_tokenizer, num_steps=2, guidance_scale=guidance_scale)
    source = render(random_scene(np.random.default_rng(1), size=size))
    (drawn,) = sampler.edit(["make it BLUE"], [source], seed=12)
    file = io.BytesIO()
    Image.fromarray(source).save(file, "PNG")
    with ImageEngine(folder, load_config(folder)) as engine:
        image = engine.preprocessor.read_image(file, "image")
        sampling = SamplingParams(
            num_inference_steps=2, guidance_scale=guidance_scale, flow_shift=3.0, seed=12
        )
        request = GenerationRequest("make it BLUE", sampling, images=(image,))
        wanted = engine.generate(request).image
        plain = engine.generate(GenerationRequest("make it BLUE", sampling)).image
    difference = np.abs(drawn.astype(int) - wanted.astype(int))
    assert difference.max() <= 1
    assert wanted.std() > 1
    assert not np.array_equal(plain, wanted)


def test_a_sheet_shows_all_pictures(tmp_path: Path) -> None:
    pictures = [np.full((4, 6, 3), at * 50, np.uint8) for at in range(3)]
    save_sheet(pictures, tmp_path / "sheet.png", 2)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (8, 12, 3)
    assert [int(sheet[y, x, 0]) for y, x in ((0, 0), (0, 6), (4, 0), (4, 6))] == [0, 50, 100, 255]
