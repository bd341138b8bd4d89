"""Timestep embedders against the reference implementation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kit.model.timestep import TimestepEmbedder, sinusoid
from kit.model.transformer import HunyuanImage3


def test_sinusoid_against_reference(golden: dict[str, Tensor]) -> None:
    """The recorded frequencies are those of one processor: a last bit is 6e-5 at t = 1000."""
    out = sinusoid(golden["timestep.t"])
    torch.testing.assert_close(out, golden["timestep.sinusoid"], rtol=0, atol=6e-5)


def test_frequencies_are_rounded_once() -> None:
    """A power of two keeps their bits in the angles, and shows the last one in a sine."""
    out = sinusoid(torch.tensor([1024.0]))[0, 128:]
    exponents = -math.log(10000.0) * torch.arange(128, dtype=torch.float32) / 128
    exact = torch.tensor([math.exp(x) for x in exponents.tolist()]).double()
    torch.testing.assert_close(out.double(), (1024 * exact).sin(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["timestep_emb", "time_embed", "time_embed_2"])
def test_embedder_against_reference(
    name: str, golden: dict[str, Tensor], transformer: HunyuanImage3
) -> None:
    out = transformer.get_submodule(name)(sinusoid(golden["timestep.t"]))
    torch.testing.assert_close(out, golden[f"timestep.{name}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["guidance_emb", "timestep_r_emb"])
def test_distilled_embedder_against_reference(
    name: str, golden: dict[str, Tensor], distil_transformer: HunyuanImage3
) -> None:
    out = distil_transformer.get_submodule(name)(sinusoid(golden["timestep.t"]))
    torch.testing.assert_close(out, golden[f"timestep.distil.{name}"], rtol=0, atol=1e-5)


def test_sinusoid_is_computed_in_float32_before_bfloat16_weights() -> None:
    # 999 and 1000 are one value in bfloat16; the embedding must still tell them apart.
    embedder = TimestepEmbedder(32).bfloat16()
    a, b = embedder(sinusoid(torch.tensor([999.0, 1000.0])))
    assert a.dtype == torch.bfloat16
    assert not a.equal(b)
