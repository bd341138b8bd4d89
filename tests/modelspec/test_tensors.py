"""The tensor table against the golden checkpoints, and against the official model's sizes."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kit.errors import CheckpointError
from kit.modelspec.config import (
    PUBLISHED_CONFIG,
    ModelConfig,
    load_model_config,
    parse_model_config,
)
from kit.modelspec.files import CheckpointFiles, TensorEntry
from kit.modelspec.tensors import (
    LAYER_PARTS,
    check_tensors,
    expected_tensors,
    missing_reference_parts,
)
from kit.modelspec.vision import NoVision

HEAD = "vision_model.head."
VISION = ("vision_model.", "vision_aligner.")
WTE = "model.wte.weight"


@pytest.fixture(scope="module")
def official() -> ModelConfig:
    """The released base model's dimensions."""
    raw = json.loads(PUBLISHED_CONFIG.read_text())
    return parse_model_config(raw)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


@pytest.fixture(scope="module")
def files(checkpoint: Path) -> CheckpointFiles:
    return CheckpointFiles.open(checkpoint)


def parameter_counts(model: ModelConfig) -> Counter[str]:
    counts: Counter[str] = Counter()
    for spec in expected_tensors(model).values():
        counts[spec.part] += math.prod(spec.shape)
    return counts


def shapes(files: CheckpointFiles) -> dict[str, tuple[int, ...]]:
    return {n: e.shape for n, e in files.tensors.items() if not n.startswith(HEAD)}


def without(files: CheckpointFiles, *prefixes: str) -> CheckpointFiles:
    kept = {n: e for n, e in files.tensors.items() if not n.startswith(prefixes)}
    return replace(files, tensors=kept)


def with_entry(files: CheckpointFiles, entry: TensorEntry) -> CheckpointFiles:
    return replace(files, tensors={**files.tensors, entry.name: entry})


def refusal(files: CheckpointFiles, model: ModelConfig) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_tensors(files, model)
    return str(caught.value)


def test_table_is_exactly_the_golden_checkpoint(files: CheckpointFiles, model: ModelConfig) -> None:
    expected = {name: spec.shape for name, spec in expected_tensors(model).items()}
    assert expected == shapes(files)
    check_tensors(files, model)


def test_table_is_exactly_the_distilled_checkpoint(distil_checkpoint: Path) -> None:
    """Which has no vision tower, though its config.json describes one."""
    files, model = CheckpointFiles.open(distil_checkpoint), load_model_config(distil_checkpoint)
    specs = expected_tensors(model)
    expected = {name: spec.shape for name, spec in specs.items() if spec.part != "vision"}
    assert expected == shapes(files)
    assert missing_reference_parts(files, model) == ["vision"]
    assert {"guidance_emb.mlp.0.weight", "timestep_r_emb.mlp.2.bias"} <= set(expected)
    check_tensors(files, model)


def test_parameter_counts_of_the_official_model(official: ModelConfig) -> None:
    """Counts that the official classes give at full size."""
    counts = parameter_counts(official)
    assert sum(counts[part] for part in LAYER_PARTS) == 79_868_207_104
    assert counts["embedding"] == 545_259_520
    assert counts["text_head"] == 545_259_520 + official.hidden_size  # lm_head and ln_f
    assert counts["patch_embed"] == 226_819_072
    assert counts["final_layer"] == 60_081_184
    assert counts["timestep_embedders"] == 3 * 17_833_984
    assert counts["vae_encoder"] == 389_342_464
    assert counts["vae_decoder"] == 871_332_483
    width, mlp = 1152, 4304
    # Probe, attention, norm and MLP of the pooling head, which nothing reads.
    head = width + 4 * (width + 1) * width + 2 * width + 2 * width * mlp + width + mlp
    assert counts["vision"] + head == 427_888_064 + 21_504_000
    assert sum(counts.values()) + head == 83_009_199_459


def test_distilled_variant_has_two_embedders_more(official: ModelConfig) -> None:
    distilled = replace(official, cfg_distilled=True, use_meanflow=True)
    counts, more = parameter_counts(official), parameter_counts(distilled)
    assert sum(more.values()) - sum(counts.values()) == 35_667_968
    assert more["timestep_embedders"] == 5 * 17_833_984


def test_one_layer_and_one_expert_of_the_official_model(official: ModelConfig) -> None:
    specs = expected_tensors(official)
    layer = [s for n, s in specs.items() if n.startswith("model.layers.31.")]
    expert = [s for n, s in specs.items() if n.startswith("model.layers.31.mlp.experts.63.")]
    assert sum(math.prod(spec.shape) for spec in layer) == 2_495_881_472
    assert sum(math.prod(spec.shape) for spec in expert) == 37_748_736


def test_layers_may_differ_in_their_experts(model: ModelConfig) -> None:
    varied = replace(
        model, num_experts=(2, 4, 6), moe_intermediate_size=(8, 16, 24), num_shared_expert=(1, 2, 3)
    )
    specs = expected_tensors(varied)
    hidden = model.hidden_size
    assert specs["model.layers.2.mlp.gate.wg.weight"].shape == (6, hidden)
    assert "model.layers.2.mlp.experts.5.down_proj.weight" in specs
    assert "model.layers.0.mlp.experts.2.down_proj.weight" not in specs
    assert specs["model.layers.1.mlp.experts.3.gate_and_up_proj.weight"].shape == (32, hidden)
    assert specs["model.layers.2.mlp.shared_mlp.down_proj.weight"].shape == (hidden, 72)


def test_equal_widths_need_no_skip_connection(model: ModelConfig) -> None:
    specs = expected_tensors(replace(model, patch_embed_hidden_dim=model.hidden_size))
    assert not [name for name in specs if "skip_connection" in name]


def test_vae_shortcut_where_a_level_changes_width_by_itself(model: ModelConfig) -> None:
    vae = replace(model.vae, block_out_channels=(32, 64, 96), ffactor_spatial=2, ffactor_temporal=1)
    specs = expected_tensors(replace(model, vae=vae))
    shortcuts = {n: s.shape for n, s in specs.items() if n.endswith("nin_shortcut.weight")}
    # Only the step between the outer levels resamples, and a resampling changes the width itself.
    assert shortcuts == {
        "vae.encoder.down.2.block.0.nin_shortcut.weight": (96, 64, 1, 1, 1),
        "vae.decoder.up.2.block.0.nin_shortcut.weight": (32, 64, 1, 1, 1),
    }


@pytest.mark.parametrize(
    "prefixes", [("vae.encoder.",), ("lm_head.", "model.ln_f."), VISION, ("vision_model.head.",)]
)
def test_text_to_image_does_without(
    files: CheckpointFiles, model: ModelConfig, prefixes: tuple[str, ...]
) -> None:
    fewer = without(files, *prefixes)
    assert len(fewer.tensors) < len(files.tensors)
    check_tensors(fewer, model)


@pytest.mark.parametrize(
    "name",
    [
        "vae.encoder.conv_in.bias",
        "vision_aligner.layers.2.weight",
        "vision_model.post_layernorm.bias",
    ],
)
def test_what_reads_references_is_there_or_not_but_never_in_part(
    files: CheckpointFiles, model: ModelConfig, name: str
) -> None:
    assert missing_reference_parts(files, model) == []
    assert f"{name} is missing" in refusal(without(files, name), model)


def test_a_checkpoint_names_the_parts_that_it_lacks(
    files: CheckpointFiles, model: ModelConfig
) -> None:
    assert missing_reference_parts(without(files, "vae.encoder."), model) == ["vae_encoder"]
    assert missing_reference_parts(without(files, *VISION), model) == ["vision"]


@pytest.mark.parametrize(
    "name",
    [
        WTE,
        "model.layers.2.mlp.experts.7.down_proj.weight",
        "model.layers.0.mlp.gate.wg.weight",
        "time_embed_2.mlp.0.bias",
        "vae.decoder.conv_out.bias",
    ],
)
def test_missing_tensor_is_named(files: CheckpointFiles, model: ModelConfig, name: str) -> None:
    shape = list(files.tensors[name].shape)
    assert f"{name} is missing, {shape} wanted" in refusal(without(files, name), model)


def test_base_checkpoint_with_a_distilled_config(
    files: CheckpointFiles, model: ModelConfig
) -> None:
    message = refusal(files, replace(model, cfg_distilled=True, use_meanflow=True))
    assert "8 problems:" in message
    assert "guidance_emb.mlp.0.weight is missing" in message


def test_distilled_checkpoint_with_a_base_config(distil_checkpoint: Path) -> None:
    files, model = CheckpointFiles.open(distil_checkpoint), load_model_config(distil_checkpoint)
    message = refusal(files, replace(model, cfg_distilled=False))
    assert "guidance_emb.mlp.0.bias in model-0001-of-0002.safetensors [64] is unexpected" in message


@pytest.mark.parametrize("name", [WTE, "vae.encoder.conv_in.weight"])
def test_wrong_shape_is_named_with_both_shapes(
    files: CheckpointFiles, model: ModelConfig, name: str
) -> None:
    entry = files.tensors[name]
    turned = with_entry(files, replace(entry, shape=entry.shape[::-1]))
    message = refusal(turned, model)
    assert "1 problem:" in message
    assert f"{name} in {entry.path.name} has shape {list(entry.shape[::-1])}" in message
    assert f"config.json wants {list(entry.shape)}" in message


def test_quantised_weights_are_refused(files: CheckpointFiles, model: ModelConfig) -> None:
    quantised = with_entry(files, replace(files.tensors[WTE], dtype="F8_E4M3"))
    message = refusal(quantised, model)
    assert f"{WTE} in model-0001-of-0003.safetensors is stored as F8_E4M3" in message
    assert "one of F32, BF16, F16 wanted" in message


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_any_plain_float_is_loadable(
    files: CheckpointFiles, model: ModelConfig, dtype: str
) -> None:
    check_tensors(with_entry(files, replace(files.tensors[WTE], dtype=dtype)), model)


def test_vision_shapes_are_checked_where_the_tower_can_run(
    files: CheckpointFiles, model: ModelConfig
) -> None:
    name = "vision_model.post_layernorm.bias"
    odd = with_entry(files, replace(files.tensors[name], shape=(7,)))
    assert f"{name} in model-0003-of-0003.safetensors has shape [7]" in refusal(odd, model)
    check_tensors(odd, replace(model, vision=NoVision("another tower")))


def test_unexpected_tensor_is_named(files: CheckpointFiles, model: ModelConfig) -> None:
    stranger = replace(files.tensors[WTE], name="model.layers.3.input_layernorm.weight")
    message = refusal(with_entry(files, stranger), model)
    assert "model.layers.3.input_layernorm.weight in model-0001" in message
    assert "[512, 64] is unexpected" in message
