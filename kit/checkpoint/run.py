"""One training run as its stages see it: where its state is, and what is noted of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kit.checkpoint import official_config
from kit.checkpoint.export import write_json
from kit.checkpoint.loop import Log
from kit.checkpoint.preset import Preset
from kit.checkpoint.state import StateFolder
from kit.checkpoint.training_record import capture_machine
from kit.modelspec.config import ModelConfig, load_model_config
from kit.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Run:
    """One training run, as its stages see it."""

    preset: Preset
    state: StateFolder
    seed: int
    device: torch.device
    num_workers: int
    command: tuple[str, ...]

    @property
    def log(self) -> Log:
        return Log(self.state.path / "log.jsonl")


def read_config(run: Run) -> tuple[ModelConfig, Tokenizer]:
    """Read what the state folder says of the model, and its tokenizer."""
    config = load_model_config(run.state.path)
    return config, Tokenizer.from_folder(run.state.path, config)


def write_config(run: Run, *, scaling_factor: float) -> None:
    """Write the preset's config.json beside the tokenizer that is there."""
    content = json.loads((run.state.path / "tokenizer.json").read_text("utf-8"))
    ids = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    config = official_config.model_config(run.preset, ids, scaling_factor)
    write_json(run.state.path / "config.json", config)


def log_piece(run: Run, stage: str, training: Mapping[str, Any], **seconds: float) -> None:
    """Note in the log what one call of a stage was."""
    run.log.write(
        "piece",
        of=stage,
        command=list(run.command),
        seed=run.seed,
        training=training,
        **{name: round(value, 1) for name, value in seconds.items()},
        machine=capture_machine(),
    )
