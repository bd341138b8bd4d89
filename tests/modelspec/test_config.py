"""config.json and generation_config.json: what is read, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.errors import CheckpointError, UnsupportedError
from kit.modelspec.config import (
    load_generation_config,
    load_model_config,
    parse_model_config,
)


@pytest.fixture
def raw(checkpoint: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    return content


def test_every_dimension_comes_from_the_file(raw: dict[str, Any]) -> None:
    raw |= {"hidden_size": 96, "num_hidden_layers": 2, "attention_head_dim": 48}
    raw |= {"moe_topk": 3, "num_shared_expert": [1, 2], "moe_intermediate_size": 40}
    raw |= {"cfg_distilled": True}
    model = parse_model_config(raw)
    assert (model.hidden_size, model.attention_head_dim, model.num_special) == (96, 48, 2)
    assert model.moe_topk == (3, 3)
    assert model.num_shared_expert == (1, 2)
    assert model.moe_intermediate_size == (40, 40)
    assert model.qkv_dim == (4 + 2 * 2) * 48


def test_absent_fields_mean_the_official_class_defaults(raw: dict[str, Any]) -> None:
    for name in ("patch_embed_hidden_dim", "image_base_size", "patch_size", "cfg_distilled"):
        raw.pop(name, None)
    model = parse_model_config(raw)
    assert (model.patch_embed_hidden_dim, model.image_base_size) == (1024, 1024)
    assert not model.cfg_distilled


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["LlamaForCausalLM"]),
        ("norm_type", "layer"),
        ("use_qk_norm", False),
        ("moe_layer_num_skipped", 2),
        ("patch_size", 2),
        ("img_proj_type", "mlp"),
        ("tie_word_embeddings", True),
        ("attention_bias", True),
        ("vae_type", "other"),
    ],
)
def test_another_variant_is_refused_by_name(raw: dict[str, Any], field: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=field):
        parse_model_config(raw | {field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 100),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("num_hidden_layers", None),
        ("num_key_value_heads", 3),
        ("attention_head_dim", 30),
        ("moe_topk", 9),
        ("moe_topk", [2, 2]),
        ("patch_embed_hidden_dim", 33),
        ("vae", None),
    ],
)
def test_a_damaged_value_is_named(raw: dict[str, Any], field: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=field):
        parse_model_config(raw | {field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_out_channels", [32, 32]),
        ("block_out_channels", [32, 32, 32, 32, 33]),
        ("ffactor_spatial", 12),
        ("ffactor_temporal", 32),
        ("latent_channels", 7),
    ],
)
def test_a_damaged_vae_value_is_named(raw: dict[str, Any], field: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=field):
        parse_model_config(raw | {"vae": raw["vae"] | {field: value}})


def test_generation_defaults_are_never_guessed(checkpoint: Path, tmp_path: Path) -> None:
    generation = load_generation_config(checkpoint)
    assert (generation.num_inference_steps, generation.guidance_scale) == (4, 2.5)
    (tmp_path / "generation_config.json").write_text('{"flow_shift": 3.0}')
    with pytest.raises(CheckpointError, match="diff_infer_steps"):
        load_generation_config(tmp_path)


def test_a_folder_that_is_none_and_one_without_the_file_are_told_apart(tmp_path: Path) -> None:
    remedy = "give the folder that holds config.json and the weights, or the hub id"
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/nowhere is no folder; {remedy}"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=rf"{tmp_path} holds no config\.json; {remedy}"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", "{", None])
def test_an_unreadable_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model_config(tmp_path)
