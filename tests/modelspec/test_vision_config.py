"""Which config.json describes a way of reading reference images that the kit has."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from kit.modelspec.config import PUBLISHED_CONFIG, parse_model_config
from kit.modelspec.vision import NoVision, VisionConfig

RAW: dict[str, Any] = json.loads(PUBLISHED_CONFIG.read_text())
GONE = object()


def vision(name: str, value: object) -> VisionConfig | NoVision:
    """What the published config says with one field changed, or gone."""
    raw = deepcopy(RAW)
    section, _, leaf = name.rpartition(".")
    holder = raw[section] if section else raw
    if value is GONE:
        del holder[leaf]
    else:
        holder[leaf] = value
    return parse_model_config(raw).vision


def test_the_published_tower() -> None:
    found = parse_model_config(RAW).vision
    assert found == VisionConfig(1152, 27, 16, 4304, 16, 16, 1024, 1e-6)
    assert found.patch_dim == 768


@pytest.mark.parametrize(
    "name",
    [
        "vit.hidden_act",
        "vit.num_channels",
        "vit.layer_norm_eps",
        "vit_processor.image_mean",
        "vit_processor.image_std",
        "vit_processor.resample",
        "vit_processor.patch_size",
    ],
)
def test_what_is_absent_has_the_classes_own_default(name: str) -> None:
    assert vision(name, GONE) == parse_model_config(RAW).vision


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cond_token_attn_type", "full"),
        ("cond_token_attn_type", GONE),  # the class's own default is another one
        ("cond_image_type", "vae"),
        ("vit_type", "clip"),
        ("vit.hidden_act", "silu"),
        ("vit.hidden_size", 1150),
        ("vit.hidden_size", "1152"),
        ("vit.num_hidden_layers", 0),
        ("vit.num_patches", 250),
        ("vit_processor.max_num_patches", GONE),
        ("vit_processor.patch_size", 14),
        ("vit_processor.resample", 3),
        ("vit_aligner.depth", 3),
        ("vit_aligner.n_embed", 1024),
        ("vit", GONE),
        ("vit", []),
        ("vit_processor", GONE),
    ],
)
def test_another_variant_is_named_and_stops_nothing_else(name: str, value: object) -> None:
    found = vision(name, value)
    assert isinstance(found, NoVision)
    assert name.partition(".")[0] in found.reason
