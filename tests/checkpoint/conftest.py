"""Small models of the toy preset with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import nn

from kit.checkpoint.bpe import SPECIAL_TOKENS, train_tokenizer
from kit.checkpoint.captions import training_captions
from kit.checkpoint.official_config import model_config
from kit.checkpoint.preset import TOY
from kit.checkpoint.vision_reader import VisionReader
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import ModelConfig, parse_model_config
from kit.tokenizer.tokenizer import Tokenizer

M = TypeVar("M", bound=nn.Module)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config and the tokenizer of the toy preset."""
    folder = tmp_path_factory.mktemp("toy")
    tokenizer = train_tokenizer(training_captions(100, seed=1), TOY.shape.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    ids = {token: vocabulary[token] for token in SPECIAL_TOKENS}
    config = model_config(TOY, ids, scaling_factor=1.25)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def toy_config(toy_folder: Path) -> ModelConfig:
    return parse_model_config(json.loads((toy_folder / "config.json").read_text()))


@pytest.fixture(scope="session")
def toy_tokenizer(toy_folder: Path, toy_config: ModelConfig) -> Tokenizer:
    return Tokenizer.from_folder(toy_folder, toy_config)


@pytest.fixture
def random_model(toy_config: ModelConfig) -> HunyuanImage3:
    """A denoiser whose weights are all random, also those that training starts at zero or one."""
    return _filled(HunyuanImage3(toy_config), seed=3)


@pytest.fixture
def random_reader(toy_config: ModelConfig) -> VisionReader:
    """The same for vision tower and aligner."""
    return _filled(VisionReader(toy_config), seed=4)


def _filled(module: M, seed: int) -> M:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter[0].numel() ** 0.5)
    return module
