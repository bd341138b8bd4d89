from __future__ import annotations

from typing import Any

import pytest

from kit.config.places import FLAGS, STAGE, TOP, check_names
from kit.config.section import Setting, read_file, read_mapping
from kit.errors import ConfigError


def test_every_spelling_names_one_field() -> None:
    flat = read_mapping({"tensor_parallel_size": 2, "diffusion_kv_page_size": 16}, STAGE, "f")
    nested = {
        "parallel_config": {"tensor_parallel_size": 2},
        "engine_extras": {"diffusion_kv_page_size": 16},
    }
    assert read_mapping(nested, STAGE, "f") == flat
    assert flat == {
        "stage.parallel_config.tensor_parallel_size": Setting(2, "f"),
        "stage.diffusion_kv_page_size": Setting(16, "f"),
    }
    wide = read_mapping({"data_parallel_size": 2, "enable_prefix_caching": True}, TOP, "f")
    assert set(wide) == {
        "stage.parallel_config.data_parallel_size",
        "stage.enable_prefix_caching",
    }


def test_null_sets_nothing_anywhere() -> None:
    content = {
        "dtype": None,
        "platforms": None,
        "stages": [
            {
                "stage_id": 0,
                "devices": None,
                "parallel_config": None,
                "engine_extras": {"diffusion_kv_mode": None},
                "default_sampling_params": {"seed": None},
            }
        ],
    }
    assert read_file(content, "f", "cpu") == [{"stage.stage_id": Setting(0, "f")}]
    assert read_file({"stages": None, "platforms": {"cpu": None}}, "f", "cpu") == [{}, {}]


@pytest.mark.parametrize(
    ("stage", "field", "other"),
    [
        (
            {"diffusion_kv_mode": "a", "engine_extras": {"diffusion_kv_mode": "b"}},
            "stages[0].engine_extras.diffusion_kv_mode",
            "stages[0].diffusion_kv_mode, which is 'a'",
        ),
        (
            {
                "engine_extras": {"diffusion_kv_max_rows_per_request": 1},
                "diffusion_kv_max_rows_per_request": True,
            },
            "stages[0].diffusion_kv_max_rows_per_request",
            "stages[0].engine_extras.diffusion_kv_max_rows_per_request, which is 1",
        ),
        (
            {"ulysses_degree": 1, "parallel_config": {"ulysses_degree": 2}},
            "stages[0].parallel_config.ulysses_degree",
            "stages[0].ulysses_degree, which is 1",
        ),
    ],
)
def test_two_spellings_with_different_values_are_refused(
    stage: dict[str, object], field: str, other: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_mapping(stage, STAGE, "f.yaml")
    assert caught.value.field == field
    assert f"contradicts {other}" in str(caught.value)
    assert "set by f.yaml" in str(caught.value)
    assert "keep one of them" in str(caught.value)


def test_two_spellings_with_one_value_are_one_setting() -> None:
    stage = {"diffusion_kv_page_size": 16, "engine_extras": {"diffusion_kv_page_size": 16}}
    assert read_mapping(stage, STAGE, "f") == {"stage.diffusion_kv_page_size": Setting(16, "f")}


@pytest.mark.parametrize(
    ("content", "field", "remedy"),
    [
        ({"max_num_seqs": 1}, "max_num_seqs", "write it as stages[0].max_num_seqs"),
        (
            {"stages": [{"stage_id": 0, "dtype": "float32"}]},
            "stages[0].dtype",
            "write it as dtype at the top level of the file",
        ),
        (
            {"stages": [{"stage_id": 0, "seed": 3}]},
            "stages[0].seed",
            "write it as stages[0].default_sampling_params.seed",
        ),
        (
            {"stages": [{"stage_id": 0, "parallel_config": {"devices": "0"}}]},
            "stages[0].parallel_config.devices",
            "write it as stages[0].devices",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": {"kv_cache_memory_bytes": 512}}]},
            "stages[0].engine_extras.kv_cache_memory_bytes",
            "write it as stages[0].kv_cache_memory_bytes",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": {"kv_cache_memory_bytes": None}}]},
            "stages[0].engine_extras.kv_cache_memory_bytes",
            "write it as stages[0].kv_cache_memory_bytes",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": {"tensor_parallel_size": 2}}]},
            "stages[0].engine_extras.tensor_parallel_size",
            "write it as stages[0].parallel_config.tensor_parallel_size",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": {"engine_extras": {}}}]},
            "stages[0].engine_extras.engine_extras",
            "write it as stages[0].engine_extras",
        ),
        ({"platforms": {"cpu": {"pipeline": "x"}}}, "pipeline", "pipeline at the top level"),
    ],
)
def test_a_field_in_the_wrong_place_is_told_the_right_one(
    content: dict[str, object], field: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(content, "f.yaml", "cpu")
    assert caught.value.field == field
    assert "known field in the wrong place" in str(caught.value)
    assert "set by f.yaml" in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("value", [True, False])
def test_a_field_that_does_nothing_is_not_sent_elsewhere(value: bool) -> None:
    content = {"stages": [{"stage_id": 0, "trust_remote_code": value}]}
    with pytest.raises(ConfigError) as caught:
        read_file(content, "f.yaml", "cpu")
    assert caught.value.field == "stages[0].trust_remote_code"
    assert "does not run code that comes with a checkpoint" in str(caught.value)
    assert str(caught.value).endswith("remove it")


@pytest.mark.parametrize("name", sorted(set(STAGE.own) - {"stage_id"}))
def test_every_stage_field_but_the_kv_ones_is_refused_in_engine_extras(name: str) -> None:
    stage = {"engine_extras": {name: 1}}
    if name.startswith("diffusion_kv_"):
        assert set(read_mapping(stage, STAGE, "f")) == {f"stage.{name}"}
        return
    with pytest.raises(ConfigError, match=rf"write it as stages\[0\]\.(\w+\.)?{name}"):
        read_mapping(stage, STAGE, "f")


@pytest.mark.parametrize(
    ("content", "field", "nearest"),
    [
        ({"pipelin": "x"}, "pipelin", "pipeline"),
        ({"stage": []}, "stage", "stages"),
        ({"stages": [{"stage_id": 0, "max_num_seq": 1}]}, "stages[0].max_num_seq", "max_num_seqs"),
        (
            {"stages": [{"stage_id": 0, "parallel_config": {"ring_degre": 1}}]},
            "stages[0].parallel_config.ring_degre",
            "ring_degree",
        ),
        (
            {"stages": [{"stage_id": 0, "default_sampling_params": {"guidance": 1}}]},
            "stages[0].default_sampling_params.guidance",
            "guidance_scale",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": {"diffusion_kv_mod": 1}}]},
            "stages[0].engine_extras.diffusion_kv_mod",
            "diffusion_kv_mode",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": {"diffusion_kv_mod": None}}]},
            "stages[0].engine_extras.diffusion_kv_mod",
            "diffusion_kv_mode",
        ),
        ({"platforms": {"cude": {}}}, "platforms.cude", "cuda"),
    ],
)
def test_an_unknown_name_fails_with_the_nearest_known_one(
    content: dict[str, object], field: str, nearest: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(content, "f.yaml", "cpu")
    assert caught.value.field == field
    assert "unknown field" in str(caught.value)
    assert "set by f.yaml" in str(caught.value)
    assert str(caught.value).endswith(f"the nearest known field is {nearest}")


def test_a_name_like_no_other_is_still_answered() -> None:
    with pytest.raises(ConfigError, match="the nearest known field is "):
        check_names({"#": 1}, FLAGS, "flags")


@pytest.mark.parametrize(
    ("content", "field", "reason"),
    [
        ({"stages": {"stage_id": 0}}, "stages", "must be a list of stages"),
        ({"stages": 0}, "stages", "must be a list of stages"),
        ({"stages": ["x"]}, "stages[0]", "must be a mapping"),
        ({"stages": [None]}, "stages[0]", "must be a mapping"),
        ({"stages": [{"devices": "cpu"}]}, "stages[0].stage_id", "one stage, with id 0"),
        ({"stages": [{"stage_id": 1, "foreign": 2}]}, "stages[0].stage_id", "one stage"),
        ({"stages": [{"stage_id": False}]}, "stages[0].stage_id", "one stage"),
        ({"stages": [{"stage_id": "0"}]}, "stages[0].stage_id", "one stage"),
        (
            {"stages": [{"stage_id": 0}, {"stage_id": 1, "foreign": 2}]},
            "stages[1].stage_id",
            "one stage",
        ),
        ({"stages": [{"stage_id": 0}, {"stage_id": 0}]}, "stages[1].stage_id", "stands twice"),
        (
            {"stages": [{"stage_id": 0, "parallel_config": [{}]}]},
            "stages[0].parallel_config",
            "must be a mapping",
        ),
        (
            {"stages": [{"stage_id": 0, "engine_extras": "paged"}]},
            "stages[0].engine_extras",
            "must be a mapping",
        ),
        ({"platforms": []}, "platforms", "must be a mapping"),
        ({"platforms": {"npu": [1]}}, "platforms.npu", "must be a mapping"),
    ],
)
def test_wrong_shapes_are_refused(content: dict[str, object], field: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(content, "f.yaml", "cpu")
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert "set by f.yaml" in str(caught.value)
    assert caught.value.remedy


def test_a_platform_section_lies_over_its_file() -> None:
    content: dict[str, Any] = {
        "dtype": "float32",
        "stages": [{"stage_id": 0, "devices": "0"}],
        "platforms": {
            "npu": {"dtype": "bfloat16", "stages": [{"stage_id": 0, "devices": "1"}]},
            "cuda": {"stages": [{"stage_id": 0, "devices": "2"}]},
        },
    }
    file, section = read_file(content, "f", "npu")
    assert file["stage.devices"] == Setting("0", "f")
    assert section["stage.devices"] == Setting("1", "f (platforms.npu)")
    assert section["dtype"] == Setting("bfloat16", "f (platforms.npu)")
    assert len(read_file(content, "f", "cpu")) == 1


def test_foreign_sections_are_read_for_their_names_only() -> None:
    section: dict[str, Any] = {
        "stages": [
            {
                "stage_id": 5,
                "quantization": "fp8",
                "max_num_seqs": "many",
                "parallel_config": {"tensor_parallel_size": -1, "use_hsdp": True},
                "engine_extras": {"diffusion_kv_mode": 3},
            },
            {"stage_id": 6},
        ],
        "quantization": "fp8",
    }
    assert read_file({"platforms": {"xpu": section}}, "f", "cpu") == [{}]
    section["stages"][1]["parallel_config"] = {"tensor_parallel": 1}
    with pytest.raises(ConfigError, match=r"set by f \(platforms\.xpu\).*tensor_parallel_size"):
        read_file({"platforms": {"xpu": section}}, "f", "cpu")


@pytest.mark.parametrize(
    ("name", "shown"), [("", "''"), ("a\nb", r"'a\nb'"), ("\ufeffdtype", r"'\ufeffdtype'")]
)
def test_a_name_that_cannot_be_seen_is_quoted(name: str, shown: str) -> None:
    with pytest.raises(ConfigError) as top:
        read_file({name: 1}, "f", "cpu")
    assert top.value.field == shown
    with pytest.raises(ConfigError) as nested:
        read_file({"stages": [{"stage_id": 0, name: 1}]}, "f", "cpu")
    assert nested.value.field == f"stages[0].{shown}"
