"""The stages that read and write checkpoint folders: restore and export."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from kit.checkpoint import official_config
from kit.checkpoint.export import (
    bfloat16_tensors,
    denoiser_tensors,
    export_checkpoint,
    write_json,
)
from kit.checkpoint.run import Run, read_config, write_config
from kit.checkpoint.train_dit import averaged_model, averaged_reader, state_tensors
from kit.checkpoint.training_record import training_record
from kit.errors import ConfigError
from kit.model.loader import load_reference_encoder, load_transformer
from kit.modelspec.config import ModelConfig, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import missing_reference_parts
from kit.modelspec.vision import VisionConfig
from kit.telemetry.log import get_logger

logger = get_logger("train")


def restore(run: Run, folder: Path) -> None:
    """Fill the state folder from an exported checkpoint of the preset's shape.

    The stage edit then goes on from its weights with a budget and a schedule of its own, or the
    stage dit where they do not read reference images.
    """
    config = load_model_config(folder)
    files = CheckpointFiles.open(folder)
    shutil.copy(folder / "tokenizer.json", run.state.path / "tokenizer.json")
    write_config(run, scaling_factor=config.vae.scaling_factor)
    _check_shape(run, config)
    vae: dict[str, Tensor] = {}
    for path in files.shard_bytes:
        vae |= {n: t for n, t in load_file(path).items() if n.startswith("vae.")}
    note: dict[str, Any] = {"restored_from": files.fingerprint(contents=True)}
    run.state.save("vocabulary", {}, note)
    run.state.save("autoencoder", vae, {**note, "scaling_factor": config.vae.scaling_factor})
    cpu, float32 = torch.device("cpu"), torch.float32
    model = load_transformer(folder, config, device=cpu, dtype=float32)
    parameters = dict(model.named_parameters())
    stage = "dit" if missing_reference_parts(files, config) else "edit"
    if stage == "edit":
        encoder = load_reference_encoder(
            folder, config, device=cpu, dtype=float32, vae_dtype=float32
        )
        for part, module in (
            ("vision_model", encoder.vision_model),
            ("vision_aligner", encoder.vision_aligner),
        ):
            parameters |= {f"{part}.{name}": p for name, p in module.named_parameters()}
    average = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    tensors = state_tensors(parameters, average)
    for other in ("dit", "edit"):
        run.state.drop(other)
    run.state.save(stage, tensors, {**note, "step": 0, "elapsed_s": 0.0})
    run.log.write("restore", **note)
    logger.info("restored %s: its weights are where the stage %s begins", folder, stage)


def export(run: Run, folder: Path, record: Path | None) -> None:
    """Write the checkpoint folder, and the record of its training."""
    vae, vae_note = run.state.load("autoencoder", made_by="vae")
    takes_references = run.state.has("edit")
    stage = "edit" if takes_references else "dit"
    trained, note = run.state.load(stage, made_by=stage)
    config, _ = read_config(run)
    tensors = denoiser_tensors(averaged_model(trained, config)) | vae
    if takes_references:
        tensors |= bfloat16_tensors(dict(averaged_reader(trained, config).named_parameters()))
    names = ("config.json", "tokenizer.json")
    small = {name: json.loads((run.state.path / name).read_text("utf-8")) for name in names}
    ids = {entry["content"]: entry["id"] for entry in small["tokenizer.json"]["added_tokens"]}
    small["tokenizer_config.json"] = official_config.tokenizer_config()
    small["generation_config.json"] = official_config.generation_config(
        run.preset, ids, takes_references=takes_references
    )
    export_checkpoint(folder, tensors, small)
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    logger.info("export: weights of the stage %s, %.2f MB in %s", stage, num_bytes / 1e6, folder)
    if record is not None:
        notes = {"vae": vae_note, stage: note, "export": {"num_bytes": num_bytes}}
        content = training_record(run.preset, run.state.path / "log.jsonl", notes)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, content)


def _check_shape(run: Run, restored: ModelConfig) -> None:
    """Raise ConfigError unless a checkpoint has the preset's shape; it may lack a vision tower."""
    own = load_model_config(run.state.path)
    if not isinstance(restored.vision, VisionConfig):
        positions = own.max_position_embeddings
        restored = replace(restored, vision=own.vision, max_position_embeddings=positions)
    if restored != own:
        names = [field.name for field in fields(own)]
        differing = [name for name in names if getattr(restored, name) != getattr(own, name)]
        raise ConfigError(
            "--checkpoint",
            f"its config.json differs from the preset {run.preset.name} in {', '.join(differing)}",
            value=restored.model_version,
            remedy="name the preset that it was trained with",
        )
