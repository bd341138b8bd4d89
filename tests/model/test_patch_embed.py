"""Latents to tokens against the reference implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.model.timestep import sinusoid
from kit.model.transformer import HunyuanImage3


def test_patch_embed_against_reference(
    golden: dict[str, Tensor], transformer: HunyuanImage3
) -> None:
    emb = transformer.time_embed(sinusoid(golden["patch_embed.t"]))
    out = transformer.patch_embed(golden["patch_embed.latents"], emb)
    torch.testing.assert_close(out, golden["patch_embed.tokens"], rtol=0, atol=1e-5)


def test_tokens_are_row_major(golden: dict[str, Tensor], transformer: HunyuanImage3) -> None:
    latents = golden["patch_embed.latents"][:1]
    emb = transformer.time_embed(sinusoid(golden["patch_embed.t"][:1]))
    changed = latents.clone()
    changed[..., 0, 0] += 1.0  # reaches rows and columns up to 3 only: three 3x3 convolutions
    before, after = transformer.patch_embed(latents, emb), transformer.patch_embed(changed, emb)
    assert before.shape == (1, 35, 64)
    moved = (after - before).abs().amax(-1).view(5, 7)
    # The group norms spread a trace of the change; what the convolutions carry is far larger.
    assert moved[:2, :2].min() > 10 * moved[4:, 4:].max()
