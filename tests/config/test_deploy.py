from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from kit.config.deploy import (
    DeployConfig,
    ParallelConfig,
    SamplingDefaults,
    StageConfig,
    leaf_fields,
    leaf_values,
    shown,
)


@pytest.mark.parametrize("model", [DeployConfig, StageConfig, ParallelConfig, SamplingDefaults])
def test_every_field_says_what_it_means(model: type[BaseModel]) -> None:
    for name, info in model.model_fields.items():
        assert info.description, f"{model.__name__}.{name} has no docstring below it"


def test_leaf_fields_are_the_settings_and_nothing_else() -> None:
    names = [name for name, _ in leaf_fields()]
    assert len(set(names)) == len(names)
    assert names[:3] == ["pipeline", "dtype", "stage.stage_id"]
    assert "stage.parallel_config.ring_degree" in names
    assert "stage.default_sampling_params.seed" in names
    assert not {"provenance", "warnings", "stage", "stage.parallel_config"} & set(names)


def test_leaf_values_follow_leaf_fields() -> None:
    values = list(leaf_values(DeployConfig(dtype="float32")))
    assert [name for name, _ in values] == [name for name, _ in leaf_fields()]
    assert values[1] == ("dtype", "float32")
    assert ("stage.parallel_config.ring_degree", 1) in values


def test_models_are_frozen_and_closed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        StageConfig().max_num_seqs = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        StageConfig.model_validate({"max_num_seq": 2})


@pytest.mark.parametrize(
    ("sizes", "sequence_size", "world_size"),
    [
        ({}, 1, 1),
        ({"tensor_parallel_size": 4}, 1, 4),
        ({"ulysses_degree": 2}, 2, 2),
        ({"sequence_parallel_size": 2, "ulysses_degree": 2}, 2, 2),
        (
            {
                "tensor_parallel_size": 2,
                "ulysses_degree": 3,
                "cfg_parallel_size": 2,
                "data_parallel_size": 5,
            },
            3,
            60,
        ),
        ({"pipeline_parallel_size": 7, "vae_patch_parallel_size": 7}, 1, 1),
    ],
)
def test_world_size(sizes: dict[str, int], sequence_size: int, world_size: int) -> None:
    parallel = ParallelConfig.model_validate(sizes)
    assert (parallel.sequence_size, parallel.world_size) == (sequence_size, world_size)


@pytest.mark.parametrize(
    ("devices", "ids"), [("cpu", ()), ("3", (3,)), ("0,1", (0, 1)), ("0 , 7", (0, 7))]
)
def test_device_ids(devices: str, ids: tuple[int, ...]) -> None:
    assert StageConfig(devices=devices).device_ids == ids


def test_shown_is_the_spelling_of_a_deploy_file() -> None:
    assert shown("dtype") == "dtype"
    assert shown("stage.max_num_seqs") == "stages[0].max_num_seqs"
    assert shown("stage.parallel_config.ring_degree") == "stages[0].parallel_config.ring_degree"
