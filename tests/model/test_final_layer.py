"""Tokens to prediction against the reference implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.model.resblock import ResBlock
from kit.model.timestep import sinusoid
from kit.model.transformer import HunyuanImage3


def test_final_layer_against_reference(
    golden: dict[str, Tensor], transformer: HunyuanImage3
) -> None:
    emb = transformer.time_embed_2(sinusoid(golden["final_layer.t"]))
    out = transformer.final_layer(golden["final_layer.tokens"], emb, (5, 7))
    torch.testing.assert_close(out, golden["final_layer.latents"], rtol=0, atol=1e-5)


def test_one_timestep_serves_all_rows(
    golden: dict[str, Tensor], transformer: HunyuanImage3
) -> None:
    tokens, t = golden["final_layer.tokens"], sinusoid(golden["final_layer.t"])
    together = transformer.predict(tokens, t[:1], (5, 7))
    for row in range(2):
        alone = transformer.predict(tokens[row : row + 1], t[:1], (5, 7))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(together[:1], golden["final_layer.latents"][:1], rtol=0, atol=1e-5)


def test_block_of_equal_widths_has_no_skip_weights() -> None:
    block = ResBlock(32, 32, 16)
    assert not [name for name, _ in block.named_parameters() if "skip" in name]
    for parameter in block.parameters():
        parameter.zero_()
    x = torch.randn(1, 32, 4, 4)
    assert block(x, torch.randn(1, 16)).equal(x)
