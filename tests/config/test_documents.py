from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.config.load import load_config
from kit.config.paths import packaged_names
from kit.errors import ConfigError

Write = Callable[..., Path]


@pytest.mark.parametrize("name", ["hunyuan_image3_dit", "hunyuan_image3_paged"])
def test_the_base_does_not_hide_the_model_overlay(write: Write, name: str) -> None:
    path = write(f"base_config: {name}\nstages: [{{stage_id: 0, max_num_seqs: 2}}]")
    for deploy_config in (name, path):
        config = load_config(deploy_config, model_overlay="tiny")
        assert config.stage.devices == "cpu"
        assert config.provenance["stage.devices"] == "model overlay tiny.yaml"
    assert load_config(path, model_overlay="tiny").stage.max_num_seqs == 2


def test_a_base_chain_is_relative_to_each_file(write: Write) -> None:
    write("dtype: float32\nstages: [{stage_id: 0, max_num_seqs: 7}]", "a/lowest.yaml")
    write("base_config: ../a/lowest.yaml\nstages: [{stage_id: 0, devices: cpu}]", "b/middle.yaml")
    path = write("base_config: b/middle.yaml\ndtype: bfloat16")
    config = load_config(path)
    assert (config.dtype, config.stage.max_num_seqs, config.stage.devices) == ("bfloat16", 7, "cpu")
    assert config.provenance["stage.max_num_seqs"].endswith("lowest.yaml")
    assert config.provenance["dtype"] == str(path)


@pytest.mark.parametrize(
    "files",
    [
        {"one.yaml": "one.yaml"},
        {"one.yaml": "two.yaml", "two.yaml": "one.yaml"},
        {"one.yaml": "two.yaml", "two.yaml": "three.yaml", "three.yaml": "./two.yaml"},
    ],
)
def test_cycles_are_refused(write: Write, tmp_path: Path, files: dict[str, str]) -> None:
    for name, base in files.items():
        write(f"base_config: {base}", name)
    with pytest.raises(ConfigError, match="base_config: leads back") as caught:
        load_config(tmp_path / "one.yaml")
    assert all(name in caught.value.source for name in files)


@pytest.mark.parametrize("name", packaged_names("deploy"))
@pytest.mark.parametrize("suffix", ["", ".yaml"])
def test_an_absent_path_names_the_packaged_file(name: str, suffix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(f"some/deploy/{name}{suffix}")
    assert caught.value.field == "deploy_config"
    assert str(caught.value).endswith(f"a file of this name is packaged: write {name}")


@pytest.mark.parametrize("name", ["absent.yaml", "", "some/folder/", "nul\0"])
def test_other_absent_files_list_the_packaged_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no such file") as caught:
        load_config(name)
    assert all(packaged in str(caught.value) for packaged in packaged_names("deploy"))


@pytest.mark.parametrize("name", ["hunyuan_image3_pagd", "Hunyuan_image3-paged.yaml"])
def test_a_misspelt_name_gets_the_nearest_packaged_one(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    assert caught.value.remedy.startswith("did you mean hunyuan_image3_paged? give the path")


@pytest.mark.parametrize("base", ["absent.yaml", "3", "[a, b]"])
def test_a_wrong_base_config_is_refused_with_its_file(write: Write, base: str) -> None:
    path = write(f"base_config: {base}")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.field == "base_config"
    assert caught.value.source == str(path)


def test_a_base_config_that_is_a_local_file_comes_before_a_packaged_name(write: Write) -> None:
    write("stages: [{stage_id: 0, max_num_seqs: 9}]", "hunyuan_image3_paged.yaml")
    path = write("base_config: hunyuan_image3_paged.yaml")
    assert load_config(path).stage.max_num_seqs == 9


@pytest.mark.parametrize("pipeline", ["wan2_2", "hunyuan_image3", 3, ["hunyuan_image3_dit"]])
def test_another_pipeline_is_refused_before_its_other_fields(
    write: Write, pipeline: object
) -> None:
    path = write(f"pipeline: {pipeline}\nstages: [{{stage_id: 1, unheard_of: 2}}]\nx: 1")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    error = caught.value
    assert (error.field, error.value, error.source) == ("pipeline", pipeline, str(path))
    assert "set pipeline: hunyuan_image3_dit" in str(error)
