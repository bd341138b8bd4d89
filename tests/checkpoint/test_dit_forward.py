"""The training's forward pass against the runtime's, on the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kit.attention.dense import DenseKV
from kit.attention.plan import plan_step
from kit.attention.reference_dense import DenseReference
from kit.checkpoint.dit_forward import ReferenceBatch, TrainingForward, moe_forward
from kit.checkpoint.edit_rows import edit_prefix, num_text_slots, read_reference
from kit.checkpoint.initial import init_vae
from kit.checkpoint.preset import TOY
from kit.checkpoint.training_rows import padded_prefix, prefix_rows
from kit.checkpoint.vision_reader import VisionReader
from kit.kv.store import KVShape
from kit.messages import RunRequest
from kit.model.moe import MoE
from kit.model.reference_encoder import ReferenceEncoder
from kit.model.rope import rotary_tables
from kit.model.timestep import sinusoid
from kit.model.transformer import HunyuanImage3
from kit.model.vision import cut_patches
from kit.modelspec.config import ModelConfig
from kit.pipeline.noise import seed_generator
from kit.pipeline.references import TokenBlock, encode_references, sample_posterior
from kit.request import ResolvedSampling, Template
from kit.tokenizer.layout import Layout, ReferenceSpan, Rows, positions_yx
from kit.tokenizer.template import ReferenceShape, build_rows
from kit.tokenizer.tokenizer import Tokenizer

SLOTS, EDIT_SLOTS = TOY.shape.sequence_slots, TOY.shape.edit_slots
CPU = torch.device("cpu")


def runtime_prediction(
    model: HunyuanImage3,
    prefix: Sequence[int],
    latents: Tensor,
    sigma: Tensor,
    layout: Layout | None = None,
    blocks: tuple[TokenBlock, ...] = (),
) -> Tensor:
    """One pass over one row, as the denoising loop makes it."""
    config, grid = model.config, (latents.shape[2], latents.shape[3])
    layout = layout or Layout(prefix_len=len(prefix), num_special=1, grid=grid, tail_len=1)
    shape = KVShape(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.attention_head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    plan = plan_step(layout, first=True)
    kv = DenseKV("CPU_REFERENCE", shape, DenseReference()).open(layout, 1, None).step(plan)
    positions = positions_yx(layout)[: plan.end]
    rotary = rotary_tables(positions, config.attention_head_dim, config.rope_theta, CPU)
    timestep = sinusoid(sigma[None] * 1000.0)
    target = model.embed_target(latents, timestep, None, None)[None]
    embeds = torch.cat((model.embed_tokens(torch.tensor([prefix])), target), dim=1)
    for block in blocks:
        block.write(embeds)
    hidden = model(embeds, rotary, kv)
    return model.predict(hidden[:, -layout.num_image :], timestep, grid)


@pytest.mark.parametrize("size", [(256, 256), (192, 320), (512, 128)])
def test_padded_batch_against_the_runtime(
    size: tuple[int, int],
    random_model: HunyuanImage3,
    toy_config: ModelConfig,
    toy_tokenizer: Tokenizer,
) -> None:
    prompts = ("a red cup", "TWO large green STARS on a wooden table with a nonsense word!")
    templates: tuple[Template, ...] = ("pretrain", "instruct")
    prefixes: list[Sequence[int]] = []
    for prompt, template in zip(prompts, templates, strict=True):
        prefixes += prefix_rows(toy_tokenizer, toy_config, prompt, size, template)
    assert len({len(prefix) for prefix in prefixes}) == 2
    num_slots = SLOTS - 257
    padded = torch.tensor(
        [padded_prefix(ids, num_slots, toy_tokenizer.special.eoi) for ids in prefixes]
    )
    generator = torch.Generator().manual_seed(4)
    latents = torch.randn(4, 16, size[0] // 16, size[1] // 16, generator=generator)
    sigmas = torch.tensor([1.0, 0.7, 0.31, 0.02])
    lengths = torch.tensor([len(ids) for ids in prefixes])
    with torch.no_grad():
        got, _ = TrainingForward(random_model, SLOTS)(latents, sigmas, padded, lengths)
    with torch.inference_mode():
        for row, prefix in enumerate(prefixes):
            wanted = runtime_prediction(
                random_model, list(prefix), latents[row : row + 1], sigmas[row]
            )
            assert wanted.abs().mean() > 0.1
            torch.testing.assert_close(got[row : row + 1], wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [(256, 256), (192, 320)])
def test_rows_with_a_reference_against_the_runtime(
    size: tuple[int, int],
    random_model: HunyuanImage3,
    random_reader: VisionReader,
    toy_config: ModelConfig,
    toy_tokenizer: Tokenizer,
) -> None:
    """Row by row the engine's own way: its rows, its encoder, its blocks of token vectors."""
    encoder = random_encoder(toy_config, random_reader)
    prompts = ("make it blue", "TURN THE VASE ON THE LEFT INTO A cup or a nonsense word!", "x")
    generator = torch.Generator().manual_seed(4)
    pictures = np.random.default_rng(5).integers(0, 256, (3, *size, 3), np.uint8)
    latents = torch.randn(3, 16, size[0] // 16, size[1] // 16, generator=generator)
    sigmas = torch.tensor([1.0, 0.4, 0.02])
    drawn, patches, wanted, texts = [], [], [], []
    for row, prompt in enumerate(prompts):
        image, shape = read_reference(pictures[row], toy_tokenizer, toy_config)
        assert np.array_equal(image.latent_pixels, pictures[row])
        rows = engine_rows(toy_tokenizer, toy_config, prompt, size, shape)
        sampling = ResolvedSampling(*size, 1, 1.0, 3.0, seed=row, reference_seed=row)
        run = RunRequest("r", rows, sampling, None, None, references=(image,))
        with torch.inference_mode():
            blocks = encode_references(random_model, encoder, run, None)
            moments = encoder.moments(torch.tensor(image.latent_pixels))
            drawn.append(sample_posterior(moments, toy_config.vae, seed_generator(row)))
            # The unconditional row of the last one.
            ids = rows.token_ids[row == 2][: rows.layout.prefix_len]
            wanted.append(
                runtime_prediction(
                    random_model, ids, latents[row : row + 1], sigmas[row], rows.layout, blocks
                )
            )
        patches.append(cut_patches(torch.tensor(image.patch_pixels)[None], 16)[0])
        prefix = edit_prefix(toy_tokenizer, toy_config, prompt, size, shape)
        assert [*prefix.head, *prefix.texts[row == 2]] == list(ids)
        texts.append(prefix.texts[row == 2])
    assert len({len(text) for text in texts}) == 3
    num_slots = num_text_slots(toy_tokenizer, toy_config, EDIT_SLOTS, size)
    pad = toy_tokenizer.special.eoi
    reference = ReferenceBatch(
        torch.cat(drawn), torch.cat(patches), torch.tensor(prefix.head), prefix.span
    )
    forward = TrainingForward(random_model, SLOTS, reader=random_reader, num_edit_slots=EDIT_SLOTS)
    arguments = (
        latents,
        sigmas,
        torch.tensor([padded_prefix(text, num_slots, pad) for text in texts]),
        torch.tensor([len(text) for text in texts]),
    )
    with torch.no_grad():
        got, _ = forward(*arguments, reference)
        torch.testing.assert_close(got, torch.cat(wanted), rtol=0, atol=1e-4)
        # Every part of a reference counts.
        for changed in (
            replace(reference, latents=reference.latents.flip(0)),
            replace(reference, patches=reference.patches.flip(0)),
            replace(reference, head=reference.head.roll(1)),
        ):
            other, _ = forward(*arguments, changed)
            assert (other - got).abs().amax() > 1e-3


def random_encoder(config: ModelConfig, reader: VisionReader) -> ReferenceEncoder:
    encoder = ReferenceEncoder(config)
    init_vae(encoder.vae_encoder)
    encoder.vision_model, encoder.vision_aligner = reader.vision_model, reader.vision_aligner
    return encoder.requires_grad_(False)


def engine_rows(
    tokenizer: Tokenizer,
    config: ModelConfig,
    prompt: str,
    size: tuple[int, int],
    shape: ReferenceShape,
) -> Rows:
    return build_rows(
        tokenizer,
        config,
        prompt=prompt,
        system_prompt=None,
        cot_text=None,
        template="instruct",
        height=size[0],
        width=size[1],
        num_rows=2,
        drop_think=False,
        references=[shape],
    )


def test_wide_experts_against_routed_ones() -> None:
    torch.manual_seed(5)
    moe = MoE(hidden_size=32, width=16, num_experts=6, top_k=2, num_shared=2)
    for parameter in moe.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 9, 32)
    with torch.no_grad():
        got, balance = moe_forward(moe, x, torch.ones(2, 9))
        torch.testing.assert_close(got, moe(x), rtol=0, atol=1e-5)
    assert balance > 1


def test_balance_counts_valid_tokens_only() -> None:
    torch.manual_seed(6)
    moe = MoE(hidden_size=32, width=16, num_experts=4, top_k=2, num_shared=1)
    for parameter in moe.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(1, 6, 32)
    valid = torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]])
    with torch.no_grad():
        _, padded = moe_forward(moe, x, valid)
        _, alone = moe_forward(moe, x[:, 2:], torch.ones(1, 4))
    torch.testing.assert_close(padded, alone)


@pytest.mark.parametrize("with_reference", [False, True])
def test_gradients_reach_every_parameter(
    with_reference: bool, random_model: HunyuanImage3, random_reader: VisionReader
) -> None:
    latents = torch.randn(2, 16, 16, 16, generator=torch.Generator().manual_seed(7))
    prefixes = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(8))
    span = ReferenceSpan(5, latent_grid=(16, 16), patch_grid=(4, 4), num_patch_tokens=16)
    reference = ReferenceBatch(
        latents.flip(0), torch.randn(2, 16, 768), torch.arange(span.end + 1), span
    )
    forward = TrainingForward(random_model, SLOTS, reader=random_reader, num_edit_slots=EDIT_SLOTS)
    got, balance = forward(
        latents,
        torch.tensor([0.2, 0.9]),
        prefixes,
        torch.tensor([20, 11]),
        reference if with_reference else None,
    )
    (got.square().mean() + balance).backward()

    def missing(module: nn.Module) -> list[str]:
        return [
            name
            for name, parameter in module.named_parameters()
            if parameter.grad is None
            or not parameter.grad.isfinite().all()
            or not parameter.grad.any()
        ]

    assert missing(random_model) == []
    assert bool(missing(random_reader)) is not with_reference
