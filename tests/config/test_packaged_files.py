"""The files under configs/: each parses, resolves and is described."""

from __future__ import annotations

import pytest

from kit.config.deploy import BASE_SOURCE, DEFAULT_SOURCE, PIPELINE
from kit.config.load import load_config
from kit.config.paths import configs_folder, packaged_names
from kit.config.show import describe
from kit.config.yaml_file import read_yaml


def test_there_are_no_other_files() -> None:
    folder = configs_folder()
    found = {path.relative_to(folder).parts[0] for path in folder.rglob("*.yaml")}
    assert found == {"deploy", "model"}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "npu"])
@pytest.mark.parametrize("overlay", [None, *packaged_names("model")])
@pytest.mark.parametrize("name", packaged_names("deploy"))
def test_each_file_resolves_and_is_described(name: str, overlay: str | None, platform: str) -> None:
    config = load_config(name, model_overlay=overlay, platform=platform)
    on_cpu = name == "hunyuan_image3_cuda" and overlay is not None
    assert [note.split(" ")[0] for note in config.warnings] == (
        ["stages[0].enforce_eager"] if on_cpu else []
    )
    assert config.stage.is_paged == (name not in {PIPELINE, "hunyuan_image3_offload"})
    text = describe(config)
    assert f"pipeline: {PIPELINE} " in text
    named = set(config.provenance.values()) - {
        DEFAULT_SOURCE,
        BASE_SOURCE,
        f"{BASE_SOURCE} (platforms.npu)",
        f"model overlay {overlay}.yaml",
        "sequence_parallel_size, set by packaged hunyuan_image3_tp2_sp2.yaml",
    }
    assert named <= {f"packaged {stem}.yaml" for stem in packaged_names("deploy")}
    assert (f"packaged {name}.yaml" in named) == (name != PIPELINE)


TOPOLOGIES = {
    "hunyuan_image3_ascend": (4, 1, 1),
    "hunyuan_image3_cpu": (1, 1, 1),
    "hunyuan_image3_cuda": (4, 1, 1),
    "hunyuan_image3_dit": (4, 1, 1),
    "hunyuan_image3_offload": (1, 1, 1),
    "hunyuan_image3_paged": (4, 1, 1),
    "hunyuan_image3_single_gpu": (1, 1, 1),
    "hunyuan_image3_tp2_cfg2": (2, 1, 2),
    "hunyuan_image3_tp2_sp2": (2, 2, 1),
    "hunyuan_image3_tp4": (4, 1, 1),
}


@pytest.mark.parametrize("name", packaged_names("deploy"))
def test_each_file_has_the_ranks_that_its_name_says(name: str) -> None:
    stage = load_config(name).stage
    parallel = stage.parallel_config
    assert (
        parallel.tensor_parallel_size,
        parallel.sequence_size,
        parallel.cfg_parallel_size,
    ) == TOPOLOGIES[name]
    assert len(stage.device_ids) == (0 if name.endswith("cpu") else parallel.world_size)


@pytest.mark.parametrize("name", packaged_names("model"))
def test_model_overlays_change_the_base_and_stand_on_nothing(name: str) -> None:
    content = read_yaml(configs_folder() / "model" / f"{name}.yaml", name)
    assert "base_config" not in content
    config = load_config(model_overlay=name)
    assert f"model overlay {name}.yaml" in config.provenance.values()
    assert config.stage.parallel_config.world_size == 1


def test_the_base_stands_on_nothing_and_pins_no_seed() -> None:
    content = read_yaml(configs_folder() / "deploy" / f"{PIPELINE}.yaml", PIPELINE)
    assert "base_config" not in content
    assert load_config().stage.default_sampling_params.seed is None


def test_the_npu_section_of_the_base_leaves_room() -> None:
    assert load_config(platform="npu").stage.gpu_memory_utilization == 0.65
    assert load_config(platform="cuda").stage.gpu_memory_utilization == 0.9
