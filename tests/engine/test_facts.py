"""The record of a real run states what ran and nothing of this machine's names and paths."""

from __future__ import annotations

import getpass
import platform
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.engine.references import pixel_hash
from kit.engine.replay import record_to_dict
from kit.engine.rerun import to_request
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import fingerprint_model
from kit.request import GenerationResult

REQUEST = GenerationRequest(
    "a red vase",
    SamplingParams(height=128, width=512, num_inference_steps=1, guidance_scale=1.0),
    system_prompt="Draw.",
    template="pretrain",
)


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoint in a folder whose name must not leak."""
    return Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("secret") / "client-project"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ImageEngine]:
    stage = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
    config = load_config(folder, stage_overrides={"0": stage}, flags={"max_num_seqs": 2})
    with ImageEngine(folder, config) as engine:
        yield engine


@pytest.fixture(scope="module")
def result(engine: ImageEngine, tmp_path_factory: pytest.TempPathFactory) -> GenerationResult:
    trace = str(tmp_path_factory.mktemp("trace") / "trace.safetensors")
    return engine.generate(replace(REQUEST, trace_path=trace, request_id="for-bob"))


def test_the_request_is_recorded_as_it_ran(result: GenerationResult) -> None:
    recorded = result.replay.request
    assert recorded.prompt == "a red vase"
    assert recorded.system_prompt == "Draw."
    assert recorded.cot_text is None
    assert recorded.template == "pretrain"
    assert recorded.sampling == result.sampling


def test_the_deployment_is_recorded_as_it_resolved(
    result: GenerationResult, engine: ImageEngine
) -> None:
    recorded, info = result.replay.deployment, engine.info
    assert recorded.kv_mode == "paged_scheduler"
    assert (recorded.backend, recorded.kernel) == (info.backend, info.kernel)
    assert recorded.kernel_version == info.kernel_version
    assert recorded.page_size == info.page_size == 32
    assert recorded.dtype == "float32", "not the auto of the settings"
    assert recorded.settings["dtype"] == "auto"
    assert recorded.settings["stage.max_num_seqs"] == 2
    assert recorded.settings["stage.parallel_config.tensor_parallel_size"] == 1


def test_model_platform_and_pixels_are_recorded(result: GenerationResult, checkpoint: Path) -> None:
    record = result.replay
    assert record.model.version == "HunyuanImage-3.0-Instruct"
    assert record.model.fingerprint == fingerprint_model(CheckpointFiles.open(checkpoint))
    assert record.platform.device == "cpu"
    assert record.platform.num_threads == torch.get_num_threads()
    assert record.platform.versions["torch"] == torch.__version__
    assert record.image.sha256 == pixel_hash(result.image)
    assert (record.image.height, record.image.width) == (128, 512)


def texts(value: object) -> Iterator[str]:
    """Every text in a tree of JSON values, keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def test_no_name_or_path_of_this_machine_is_recorded(result: GenerationResult) -> None:
    found = set(texts(record_to_dict(result.replay)))
    assert "a red vase" in found
    assert not found & {socket.gethostname(), platform.node(), getpass.getuser(), "for-bob"}
    with_slash = {text for text in found if "/" in text or "\\" in text}
    assert with_slash == {"kit.replay/3"}, "no value is a path"


def test_the_recorded_request_gives_the_recorded_picture(
    result: GenerationResult, engine: ImageEngine
) -> None:
    again = engine.generate(to_request(result.replay))
    assert again.replay == result.replay
