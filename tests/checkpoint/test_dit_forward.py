"""The training's forward pass against the runtime's, on the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kit.attention.dense import DenseKV
from kit.attention.plan import plan_step
from kit.attention.reference_dense import DenseReference
from kit.checkpoint.dit_forward import TrainingForward, moe_forward
from kit.checkpoint.training_rows import padded_prefix, prefix_rows
from kit.kv.store import KVShape
from kit.model.moe import MoE
from kit.model.rope import rotary_tables
from kit.model.timestep import sinusoid
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import ModelConfig
from kit.tokenizer.layout import Layout, positions_yx
from kit.tokenizer.tokenizer import Tokenizer

SLOTS = 352
CPU = torch.device("cpu")


def runtime_prediction(
    model: HunyuanImage3, prefix: list[int], latents: Tensor, sigma: Tensor
) -> Tensor:
    """One pass over one row, as the denoising loop makes it."""
    config, grid = model.config, (latents.shape[2], latents.shape[3])
    layout = Layout(prefix_len=len(prefix), num_special=1, grid=grid, tail_len=1)
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
    prefixes = []
    for prompt, template in zip(prompts, ("pretrain", "instruct"), strict=True):
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


def test_gradients_reach_every_parameter(random_model: HunyuanImage3) -> None:
    latents = torch.randn(2, 16, 16, 16, generator=torch.Generator().manual_seed(7))
    prefixes = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(8))
    forward = TrainingForward(random_model, SLOTS)
    got, balance = forward(latents, torch.tensor([0.2, 0.9]), prefixes, torch.tensor([20, 11]))
    (got.square().mean() + balance).backward()
    missing = [
        name
        for name, parameter in random_model.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all()
    ]
    assert missing == []
