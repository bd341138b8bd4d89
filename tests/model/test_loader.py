"""Official files into modules: every tensor in its place, every fault named before loading."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kit.errors import CheckpointError
from kit.model.loader import load_transformer, load_vae_decoder, official_views
from kit.model.reference_encoder import ReferenceEncoder
from kit.model.transformer import HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.modelspec.config import ModelConfig, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import REFERENCE_PARTS, expected_tensors

CPU = torch.device("cpu")
INDEX = "model.safetensors.index.json"
EXPERT = "model.layers.1.mlp.experts.5.down_proj.weight"


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    shards = sorted(folder.glob("*.safetensors"))
    return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}


@pytest.fixture
def edit(checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the checkpoint with one tensor put in, changed or removed."""

    def edit(name: str, tensor: Tensor | None, *, keep_in_index: bool = False) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.copytree(checkpoint, folder)
        index = json.loads((folder / INDEX).read_text())
        shard = index["weight_map"].setdefault(name, "model-0001-of-0003.safetensors")
        tensors = load_file(folder / shard)
        if tensor is None:
            del tensors[name]
            if not keep_in_index:
                del index["weight_map"][name]
        else:
            tensors[name] = tensor
        save_file(tensors, folder / shard, {"format": "pt"})
        (folder / INDEX).write_text(json.dumps(index))
        return folder

    return edit


def refusal(folder: Path) -> str:
    """The error of both loaders, which must agree and must not have read a tensor."""
    read: list[int] = []
    messages = []
    config = load_model_config(folder)
    for load in (load_transformer, load_vae_decoder):
        with pytest.raises(CheckpointError) as caught:
            load(folder, config, device=CPU, dtype=torch.float32, on_bytes=read.append)
        messages.append(str(caught.value))
    assert not read
    assert messages[0] == messages[1]
    return messages[0]


def names_and_shapes(
    model: torch.nn.Module, decoder: torch.nn.Module
) -> dict[str, tuple[int, ...]]:
    found = {name: tuple(view.shape) for name, view in official_views(model)}
    for name, view in official_views(decoder):
        found[f"vae.decoder.{name}"] = tuple(view.shape)
    return found


@pytest.mark.parametrize("which", ["golden", "distilled", "published"])
def test_modules_hold_exactly_the_official_tensors(
    which: str, checkpoint: Path, distil_checkpoint: Path, official_config: ModelConfig
) -> None:
    config = {
        "golden": load_model_config(checkpoint),
        "distilled": load_model_config(distil_checkpoint),
        "published": official_config,
    }[which]
    with torch.device("meta"):
        found = names_and_shapes(HunyuanImage3(config), VAEDecoder(config.vae))
        encoder = ReferenceEncoder(config)
    specs = expected_tensors(config)
    wanted = {name: spec.shape for name, spec in specs.items() if spec.needed_for_t2i}
    assert found == wanted
    prefixes = {"vae_encoder": "vae.encoder"}
    read = {
        f"{prefixes.get(part, part)}.{name}": view.shape
        for part, module in encoder.named_children()
        for name, view in official_views(module)
    }
    assert read == {n: s.shape for n, s in specs.items() if s.part in REFERENCE_PARTS}


def test_every_value_arrives_in_its_place(
    checkpoint: Path, transformer: HunyuanImage3, vae_decoder: VAEDecoder
) -> None:
    stored = stored_tensors(checkpoint)
    views = dict(official_views(transformer))
    views |= {f"vae.decoder.{name}": view for name, view in official_views(vae_decoder)}
    for name, view in views.items():
        assert view.equal(stored[name].float()), name
    assert not any(p.requires_grad for p in transformer.parameters())
    assert not transformer.training
    assert not vae_decoder.training


def test_bfloat16_load_keeps_router_weights_in_float32(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    model = load_transformer(checkpoint, config, device=CPU, dtype=torch.bfloat16)
    stored = stored_tensors(checkpoint)
    routers = 0
    for name, view in official_views(model):
        if name.endswith("mlp.gate.wg.weight"):
            routers += 1
            assert view.dtype == torch.float32
            assert view.equal(stored[name])
        else:
            assert view.dtype == torch.bfloat16
            assert view.equal(stored[name].bfloat16())
    assert routers == 3


def test_router_stored_in_bfloat16_becomes_float32(edit: Callable[..., Path]) -> None:
    name = "model.layers.0.mlp.gate.wg.weight"
    value = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    folder = edit(name, value)
    config = load_model_config(folder)
    model = load_transformer(folder, config, device=CPU, dtype=torch.bfloat16)
    assert dict(official_views(model))[name].equal(value.float())


def test_single_file_checkpoint(
    checkpoint: Path, tmp_path: Path, transformer: HunyuanImage3
) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path)
    save_file(stored_tensors(checkpoint), tmp_path / "model.safetensors", {"format": "pt"})
    config = load_model_config(tmp_path)
    model = load_transformer(tmp_path, config, device=CPU, dtype=torch.float32)
    loaded = dict(official_views(model))
    assert all(view.equal(loaded[name]) for name, view in official_views(transformer))


def test_progress_counts_the_bytes_that_are_needed(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    read: list[int] = []
    for load in (load_transformer, load_vae_decoder):
        load(checkpoint, config, device=CPU, dtype=torch.float32, on_bytes=read.append)
    needed = [name for name, spec in expected_tensors(config).items() if spec.needed_for_t2i]
    files = CheckpointFiles.open(checkpoint)
    assert len(read) == len(needed)
    assert sum(read) == sum(files.tensors[name].num_bytes for name in needed)


def test_missing_tensor_is_named_with_its_shape(edit: Callable[..., Path]) -> None:
    message = refusal(edit(EXPERT, None))
    assert EXPERT in message
    assert "[64, 48]" in message


def test_tensor_that_is_not_in_its_shard_is_named_with_the_shard(
    edit: Callable[..., Path], checkpoint: Path
) -> None:
    message = refusal(edit(EXPERT, None, keep_in_index=True))
    assert EXPERT in message
    assert json.loads((checkpoint / INDEX).read_text())["weight_map"][EXPERT] in message


def test_wrong_shape_is_named_with_both_shapes(edit: Callable[..., Path]) -> None:
    message = refusal(edit(EXPERT, torch.zeros(48, 64, dtype=torch.bfloat16)))
    assert EXPERT in message
    assert "[48, 64]" in message
    assert "[64, 48]" in message


@pytest.mark.parametrize(
    "name", ["model.layers.3.input_layernorm.weight", "vae.quant_conv.weight", "guidance_emb.x"]
)
def test_unexpected_tensor_is_named(name: str, edit: Callable[..., Path]) -> None:
    assert name in refusal(edit(name, torch.zeros(2)))


def test_unreadable_dtype_is_named(edit: Callable[..., Path]) -> None:
    message = refusal(edit(EXPERT, torch.zeros(64, 48, dtype=torch.float8_e4m3fn)))
    assert EXPERT in message
    assert "F8_E4M3" in message


def test_missing_shard_is_named(edit: Callable[..., Path]) -> None:
    folder = edit("lm_head.weight", None)
    (folder / "model-0003-of-0003.safetensors").unlink()
    assert "model-0003-of-0003.safetensors" in refusal(folder)


def test_config_of_another_shape_is_refused(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    wider = replace(config, moe_intermediate_size=(64, 48, 48))
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.experts\.0"):
        load_transformer(checkpoint, wider, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.ln_f.weight"])
def test_tensors_that_text_to_image_does_not_read_may_be_absent(
    name: str, edit: Callable[..., Path]
) -> None:
    folder = edit(name, None)
    config = load_model_config(folder)
    read: list[int] = []
    load_transformer(folder, config, device=CPU, dtype=torch.float32, on_bytes=read.append)
    load_vae_decoder(folder, config, device=CPU, dtype=torch.float32, on_bytes=read.append)
    assert read


def test_loading_does_not_import_the_compiler(checkpoint: Path) -> None:
    code = (
        "import sys, torch; from pathlib import Path\n"
        "from kit.model.loader import load_transformer, load_vae_decoder\n"
        "from kit.modelspec.config import load_model_config\n"
        f"folder = Path({str(checkpoint)!r})\n"
        "for load in (load_transformer, load_vae_decoder):\n"
        "    load(folder, load_model_config(folder), device=torch.device('cpu'), "
        "dtype=torch.float32)\n"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"
