"""Small models of the toy preset with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kit.checkpoint.bpe import special_ids, train_tokenizer
from kit.checkpoint.captions import training_captions
from kit.checkpoint.official_config import model_config
from kit.checkpoint.preset import TOY
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import ModelConfig, parse_model_config
from kit.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config and the tokenizer of the toy preset."""
    folder = tmp_path_factory.mktemp("toy")
    tokenizer = train_tokenizer(training_captions(100, seed=1), TOY.shape.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = model_config(TOY, special_ids(tokenizer), scaling_factor=1.25)
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
    torch.manual_seed(3)
    model = HunyuanImage3(toy_config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter[0].numel() ** 0.5)
    return model
