"""Fixtures shared by all tests: the golden checkpoints and the reference's tables."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_cases import GOLDEN, PACKAGE

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT


def pytest_configure() -> None:
    """Compute on one thread here and in every process that a test starts.

    Pictures are compared bit for bit between processes, and on some processors another number of
    threads sums in another order.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> None:
    """Draw the same random tensors in a fixture whatever ran before it."""
    _seed(f"{fixturedef.argname} {request.node.nodeid}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """The same of a test."""
    _seed(item.nodeid)


def _seed(name: str) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The random-weight checkpoint on which the golden cases were recorded."""
    return PACKAGE / "checkpoint" / "golden"


@pytest.fixture(scope="session")
def distil_checkpoint(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """The distilled golden checkpoint, completed with the VAE shard of the base one."""
    folder = tmp_path_factory.mktemp("distil") / "checkpoint"
    shutil.copytree(GOLDEN / "checkpoint_distil", folder)
    base = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for name, shard in base["weight_map"].items():
        if name.startswith("vae."):
            target = f"vae-{shard}"
            index["weight_map"][name] = target
            if not (folder / target).exists():
                shutil.copy(checkpoint / shard, folder / target)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="session")
def text_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped checkpoint with a template in which reference images have no place."""
    folder = tmp_path_factory.mktemp("text") / DEFAULT_CHECKPOINT.name
    shutil.copytree(DEFAULT_CHECKPOINT, folder)
    path = folder / "generation_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "sequence_template": "pretrain"}))
    return folder


@pytest.fixture(scope="session")
def tables() -> dict[str, Any]:
    """Special token ids, tokenizer samples, schedules and buckets of the reference."""
    content: dict[str, Any] = json.loads((GOLDEN / "tables.json").read_text())
    return content
