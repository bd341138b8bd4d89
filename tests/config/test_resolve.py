from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.config.deploy import leaf_fields, value_of
from kit.config.resolve import merge, resolve
from kit.config.section import Setting, Settings
from kit.errors import ConfigError

NAMES = [name for name, _ in leaf_fields()]
ROWS = "stage.diffusion_kv_max_rows_per_request"


def settings_of(**values: object) -> Settings:
    return {name.replace("__", "."): Setting(value, "the test") for name, value in values.items()}


@pytest.mark.parametrize(
    ("dotted", "values", "reason", "remedy"),
    [
        (ROWS, [True, "2", 2.0, [2]], "must be an integer", "as JSON does, such as 7"),
        (ROWS, [0, -1], "is too small", "at least 1"),
        ("stage.diffusion_kv_page_size", [True, "16", 16.0], "must be an integer", "as JSON"),
        ("stage.diffusion_kv_page_size", [0], "is too small", "at least 1"),
        ("stage.kv_cache_memory_bytes", [True, "512MiB", 5e8], "must be an integer", "as JSON"),
        ("stage.kv_cache_memory_bytes", [0, -5], "is too small", "at least 1"),
        ("stage.max_num_seqs", [True, "1", 1.0], "must be an integer", "as JSON"),
        ("stage.max_num_seqs", [0], "is too small", "at least 1"),
        ("stage.gpu_memory_utilization", [0, 0.0, -0.1], "is too small", "above 0"),
        ("stage.gpu_memory_utilization", [1.01, 90], "is too large", "at most 1"),
        ("stage.gpu_memory_utilization", ["0.9", True], "must be a number", "without quotes"),
        (
            "stage.gpu_memory_utilization",
            [float("nan"), float("inf")],
            "must be a finite number",
            "finite number",
        ),
        ("stage.enforce_eager", ["yes", 1, 0], "must be true or false", "without quotes"),
        ("stage.step_execution", ["false", 0], "must be true or false", "without quotes"),
        ("stage.devices", [0, [0, 1]], "must be a text", "in quotes"),
        ("stage.devices", ["", "cuda:0", "0,", "0;1", "-1", "CPU", "9" * 50], "neither", '"0,1"'),
        ("stage.diffusion_kv_mode", ["paged", 1, True, []], "not known", "'paged_scheduler'"),
        ("stage.diffusion_attention_backend", ["flash_attn", 2], "not known", "'FLASH_ATTN'"),
        ("stage.stage_id", [2**63], "cannot be used", "correct the value"),
        ("dtype", ["float16", "half", 16], "not known", "'bfloat16'"),
        ("stage.parallel_config.cfg_parallel_size", [3], "is too large", "at most 2"),
        ("stage.parallel_config.cfg_parallel_size", [0], "is too small", "at least 1"),
        ("stage.parallel_config.cfg_parallel_size", [True, "2"], "must be an integer", "as JSON"),
        ("stage.parallel_config.tensor_parallel_size", [True, "4", 0.5], "must be an integer", ""),
        ("stage.default_sampling_params.num_inference_steps", [0], "is too small", "at least 1"),
        ("stage.default_sampling_params.num_inference_steps", [1001], "is too large", "1000"),
        ("stage.default_sampling_params.guidance_scale", [-1], "is too small", "at least 0"),
        ("stage.default_sampling_params.guidance_scale", [101.0], "is too large", "100"),
        ("stage.default_sampling_params.seed", [-1], "is too small", "at least 0"),
        ("stage.default_sampling_params.seed", [2**63], "is too large", str(2**63 - 1)),
        ("stage.default_sampling_params.flow_shift", [0, 0.0], "is too small", "at least 0.01"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused(
    dotted: str, values: list[object], reason: str, remedy: str
) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            resolve({dotted: Setting(value, "the test")})
        error = caught.value
        assert error.field == dotted.replace("stage.", "stages[0].")
        assert error.value is value
        assert error.source == "the test"
        assert repr(value) in str(error)
        assert reason in error.reason
        assert remedy in error.remedy


def test_a_whole_number_is_a_number() -> None:
    config = resolve({"stage.default_sampling_params.guidance_scale": Setting(5, "the test")})
    assert config.stage.default_sampling_params.guidance_scale == 5.0


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**64, 10**400, -(10**400)])
    | st.floats()
    | st.text()
    | st.sampled_from(["cpu", "0", "paged_scheduler", "FLASH_ATTN", "ar_diffusion_kv", "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)


# A null is no setting: readers drop it before it comes here.
SET_VALUES = JSON_VALUES.filter(lambda value: value is not None)


@settings(deadline=None)
@given(values=st.dictionaries(st.sampled_from(NAMES), SET_VALUES, max_size=3))
def test_any_value_resolves_or_is_refused_with_its_field(values: dict[str, Any]) -> None:
    given_settings = {name: Setting(value, "the test") for name, value in values.items()}
    refusal = None
    try:
        config = resolve(given_settings)
    except ConfigError as error:
        refusal = error
    if refusal is not None:
        assert refusal.field
        assert refusal.remedy
        assert refusal.source in ("the test", "default")
        return
    for name, value in values.items():
        assert value_of(config, name) == value
        assert config.provenance[name] == "the test"


@settings(deadline=None)
@given(
    layers=st.lists(st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=4), max_size=4)
)
def test_merge_keeps_the_last_value_and_its_source(layers: list[dict[str, int]]) -> None:
    merged = merge(
        {name: Setting(value, str(index)) for name, value in layer.items()}
        for index, layer in enumerate(layers)
    )
    assert set(merged) == {name for layer in layers for name in layer}
    for name, setting in merged.items():
        index = max(index for index, layer in enumerate(layers) if name in layer)
        assert setting == Setting(layers[index][name], str(index))


def test_a_sequence_size_alone_means_strict_ulysses() -> None:
    config = resolve(settings_of(stage__parallel_config__sequence_parallel_size=2))
    assert config.stage.parallel_config.ulysses_degree == 2
    assert config.stage.parallel_config.world_size == 2
    source = config.provenance["stage.parallel_config.ulysses_degree"]
    assert source == "sequence_parallel_size, set by the test"


def test_a_degree_alone_decides_the_sequence_size() -> None:
    parallel = resolve(settings_of(stage__parallel_config__ulysses_degree=2)).stage.parallel_config
    assert parallel.sequence_parallel_size is None
    assert parallel.sequence_size == 2


def test_a_value_of_thousands_of_characters_is_cut() -> None:
    value = "x" * 5000
    with pytest.raises(ConfigError) as caught:
        resolve({"stage.devices": Setting(value, "the test")})
    message = str(caught.value)
    assert caught.value.value == value
    assert "x... of 5002 characters, set by the test); write" in message
    assert len(message) < 1300
