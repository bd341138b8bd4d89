from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from kit.config.deploy import BASE_SOURCE, DEFAULT_SOURCE, leaf_fields, value_of
from kit.config.load import load_config
from kit.errors import ConfigError

Write = Callable[..., Path]

FIELDS = dict(leaf_fields())
STAGE_FIELDS = [name for name in FIELDS if name.startswith("stage.")]
# What must stand beside a value for it to be legal.
PAGED = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
COMPANIONS: dict[str, dict[str, Any]] = {
    "diffusion_kv_mode": {"diffusion_kv_max_rows_per_request": 2},
    "enable_prefix_caching": PAGED,
    "prefix_caching_levels": {**PAGED, "enable_prefix_caching": True},
    "sequence_parallel_size": {"ulysses_degree": 2},
    "vae_patch_parallel_size": {"tensor_parallel_size": 2},
    "height": {"default_sampling_params": {"width": 512}},
    "width": {"default_sampling_params": {"height": 512}},
}
# Known sizes of which the kit implements 1 only.
ONE_ONLY = ("ring_degree", "allgather_degree", "pipeline_parallel_size")


def sample(dotted: str, info: FieldInfo) -> object:
    """Return a legal value of a field, another than the default where there is one."""
    name = dotted.rpartition(".")[2]
    annotation = info.annotation
    if get_origin(annotation) is Union or NoneType in get_args(annotation):
        annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    if get_origin(annotation) is Literal:
        others = [value for value in get_args(annotation) if value != info.default]
        return others[0] if others else info.default
    base = getattr(annotation, "__origin__", annotation)
    if name == "devices":
        return "0"
    if name == "prefix_caching_levels":
        return ("rows", "images")
    if name in ONE_ONLY:
        return 1
    samples: dict[object, object] = {bool: not info.default, int: 2, float: 0.25}
    return samples[base]


def stage_with(dotted: str, value: object) -> dict[str, Any]:
    """Return a stage on the CPU that sets one field, with what must stand beside it."""
    *groups, name = dotted.removeprefix("stage.").split(".")
    stage: dict[str, Any] = {
        "devices": "cpu",
        "tensor_parallel_size": 1,
        **COMPANIONS.get(name, {}),
    }
    node = stage
    for group in groups:
        node = node.setdefault(group, {})
    node[name] = value
    if name == "tensor_parallel_size":
        del stage["tensor_parallel_size"]
    return stage


def as_yaml(stage: dict[str, Any]) -> str:
    return json.dumps({"stages": [{"stage_id": 0, **stage}]})


def test_no_argument_gives_the_packaged_base() -> None:
    config = load_config()
    assert config.stage.devices == "0,1,2,3"
    assert config.stage.parallel_config.tensor_parallel_size == 4
    assert config.stage.diffusion_kv_mode == "dense_legacy"
    assert config.stage.diffusion_attention_backend == "FLASH_ATTN"
    assert set(config.provenance.values()) == {BASE_SOURCE, DEFAULT_SOURCE}
    assert config.warnings == ()
    assert load_config("hunyuan_image3_dit") == load_config("hunyuan_image3_dit.yaml") == config


def test_every_setting_has_a_source_and_only_settings_have_one() -> None:
    assert set(load_config().provenance) == set(FIELDS)


@pytest.mark.parametrize("dotted", STAGE_FIELDS)
def test_a_file_sets_every_stage_field(write: Write, dotted: str) -> None:
    value = sample(dotted, FIELDS[dotted])
    path = write(as_yaml(stage_with(dotted, value)))
    config = load_config(path)
    assert value_of(config, dotted) == value
    assert config.provenance[dotted] == str(path)


@pytest.mark.parametrize("dotted", STAGE_FIELDS)
def test_an_override_beats_the_file_for_every_stage_field(write: Write, dotted: str) -> None:
    default = value_of(load_config(model_overlay="tiny"), dotted)
    below = stage_with(dotted, default) if default is not None else {"devices": "cpu"}
    value = sample(dotted, FIELDS[dotted])
    config = load_config(write(as_yaml(below)), stage_overrides={"0": stage_with(dotted, value)})
    assert value_of(config, dotted) == value
    assert config.provenance[dotted] == "--stage-overrides"


@pytest.mark.parametrize("dotted", [n for n in FIELDS if n.count(".") < 2 and n != "pipeline"])
def test_a_flag_beats_an_override(write: Write, dotted: str) -> None:
    name = dotted.removeprefix("stage.")
    value = sample(dotted, FIELDS[dotted])
    overrides: dict[str, Any] = {"devices": "cpu"}
    if dotted != "dtype":
        overrides = stage_with(dotted, value)
    overrides.setdefault("tensor_parallel_size", 1)
    flags = {**COMPANIONS.get(name, {}), name: value}
    config = load_config(write("dtype: auto"), stage_overrides={"0": overrides}, flags=flags)
    assert value_of(config, dotted) == value
    assert config.provenance[dotted] == f"--{name.replace('_', '-')}"


def test_a_flag_that_is_none_is_not_set() -> None:
    assert load_config(flags={"dtype": None, "max_num_seqs": None}) == load_config()
    assert load_config(flags={"dtype": "float32"}).dtype == "float32"


def test_a_default_or_null_never_beats_an_explicit_value(write: Write) -> None:
    below = write("stages: [{stage_id: 0, max_num_seqs: 3, devices: cpu}]", "below.yaml")
    path = write(
        """
        base_config: below.yaml
        stages:
          - stage_id: 0
            max_num_seqs:
            parallel_config:
            default_sampling_params: {seed: 1}
        """
    )
    overrides = {"0": {"max_num_seqs": None, "default_sampling_params": {"seed": None}}}
    config = load_config(path, stage_overrides=overrides, flags={"max_num_seqs": None})
    assert config.stage.max_num_seqs == 3
    assert config.provenance["stage.max_num_seqs"] == str(below)
    assert config.stage.default_sampling_params.seed == 1


def test_groups_merge_key_by_key(write: Write) -> None:
    write(
        """
        stages:
          - stage_id: 0
            devices: cpu
            parallel_config: {tensor_parallel_size: 2, enable_expert_parallel: true}
            default_sampling_params: {seed: 1, guidance_scale: 5}
            engine_extras: {diffusion_kv_mode: paged_scheduler, diffusion_kv_page_size: 16}
        """,
        "below.yaml",
    )
    path = write(
        """
        base_config: below.yaml
        stages:
          - stage_id: 0
            parallel_config: {cfg_parallel_size: 2}
            default_sampling_params: {seed: 2}
            engine_extras: {diffusion_kv_max_rows_per_request: 2}
        """
    )
    stage = load_config(path).stage
    assert stage.parallel_config.world_size == 4
    assert stage.parallel_config.enable_expert_parallel
    assert (stage.default_sampling_params.seed, stage.default_sampling_params.guidance_scale) == (
        2,
        5.0,
    )
    assert (stage.diffusion_kv_page_size, stage.diffusion_kv_max_rows_per_request) == (16, 2)


@pytest.mark.parametrize("is_upper_nested", [False, True])
@pytest.mark.parametrize("is_lower_nested", [False, True])
def test_layer_order_decides_whichever_spelling_each_layer_used(
    write: Write, is_lower_nested: bool, is_upper_nested: bool
) -> None:
    def spelled(value: int, is_nested: bool) -> dict[str, Any]:
        field = {"diffusion_kv_page_size": value}
        return {"engine_extras": field} if is_nested else field

    path = write(as_yaml(spelled(16, is_lower_nested)))
    config = load_config(path, stage_overrides={"0": spelled(176, is_upper_nested)})
    assert config.stage.diffusion_kv_page_size == 176
    assert config.provenance["stage.diffusion_kv_page_size"] == "--stage-overrides"


def test_the_model_overlay_lies_over_the_base_and_below_the_file(write: Write) -> None:
    config = load_config(model_overlay="tiny")
    assert (config.stage.devices, config.stage.parallel_config.world_size) == ("cpu", 1)
    assert config.provenance["stage.devices"] == "model overlay tiny.yaml"
    path = write("stages: [{stage_id: 0, devices: '5'}]")
    assert load_config(path, model_overlay="tiny").stage.devices == "5"


def test_the_file_of_the_guide_runs_paged(write: Write) -> None:
    path = write(
        """
        pipeline: hunyuan_image3_dit

        stages:
          - stage_id: 0
            max_num_seqs: 1
            enforce_eager: true
            diffusion_attention_backend: FLASH_ATTN
            step_execution: false
            kv_cache_memory_bytes: 536870912  # 512 MiB per rank
            engine_extras:
              diffusion_kv_mode: paged_scheduler
              diffusion_kv_max_rows_per_request: 2
        """
    )
    flat_overrides = (
        '{"0":{"diffusion_kv_mode":"paged_scheduler","diffusion_kv_max_rows_per_request":2,'
        '"kv_cache_memory_bytes":536870912,"step_execution":false,'
        '"diffusion_attention_backend":"FLASH_ATTN"}}'
    )
    from_file = load_config(path)
    assert from_file.stage.is_paged
    assert from_file.stage.kv_cache_memory_bytes == 536870912
    assert from_file.warnings == ()
    assert load_config(stage_overrides=flat_overrides).stage == from_file.stage
    assert load_config("hunyuan_image3_paged").stage == from_file.stage


@pytest.mark.parametrize(
    ("platform", "fraction", "num_warnings"), [("cuda", 0.9, 0), ("cpu", 0.9, 0), ("npu", 0.65, 1)]
)
def test_the_omni_file_loads_unmodified(
    omni_file: Path, platform: str, fraction: float, num_warnings: int
) -> None:
    config = load_config(omni_file, platform=platform)
    parallel = config.stage.parallel_config
    assert (parallel.tensor_parallel_size, parallel.enable_expert_parallel) == (4, True)
    assert config.stage.device_ids == (0, 1, 2, 3)
    assert config.stage.gpu_memory_utilization == fraction
    assert config.stage.default_sampling_params.seed == 42
    # The npu section asks for max_num_batched_tokens, which cannot change an image here.
    assert len(config.warnings) == num_warnings
    section = " (platforms.npu)" if platform == "npu" else ""
    assert config.provenance["stage.gpu_memory_utilization"] == f"{omni_file}{section}"


def test_the_xpu_section_is_judged_only_where_it_applies(omni_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(omni_file, platform="xpu")
    assert caught.value.value == "fp8"
    assert caught.value.source == f"{omni_file} (platforms.xpu)"


def test_a_platform_section_of_a_low_file_lies_below_the_next_file(write: Write) -> None:
    write(
        """
        platforms:
          cpu: {stages: [{stage_id: 0, max_num_seqs: 2, devices: cpu}]}
        """,
        "low.yaml",
    )
    path = write("base_config: low.yaml\nstages: [{stage_id: 0, max_num_seqs: 3}]")
    config = load_config(path, platform="cpu")
    assert (config.stage.max_num_seqs, config.stage.devices) == (3, "cpu")


@pytest.mark.parametrize(
    ("overrides", "field", "reason"),
    [
        ("{", "--stage-overrides", "no valid JSON"),
        ("", "--stage-overrides", "no valid JSON"),
        ("[" * 100_000, "--stage-overrides", "no valid JSON"),
        ("1" * 5000, "--stage-overrides", "no valid JSON"),
        ("[]", "--stage-overrides", "must be a mapping"),
        ('{"0": [1]}', "stages[0]", "must be a mapping"),
        ('{"0": {}, "0": {}}', "0", "stands twice"),
        ('{"0": {"max_num_seqs": 1, "max_num_seqs": 2}}', "max_num_seqs", "stands twice"),
        ('{"1": {}}', "stage id", "one stage, with id 0"),
        ('{"00": {}}', "stage id", "one stage, with id 0"),
        ('{"max_num_seqs": 1}', "stage id", "one stage, with id 0"),
        ({True: {}}, "stage id", "one stage, with id 0"),
        ('{"0": {"stage_id": 1}}', "stages[0].stage_id", "one stage, with id 0"),
        ('{"0": {"max_num_seq": 1}}', "stages[0].max_num_seq", "unknown field"),
        ('{"0": {"dtype": "float32"}}', "stages[0].dtype", "wrong place"),
    ],
)
def test_wrong_overrides_are_refused(overrides: Any, field: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(stage_overrides=overrides)
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert caught.value.source == "--stage-overrides"
    assert caught.value.remedy


def test_overrides_take_either_kind_of_stage_key() -> None:
    assert load_config(stage_overrides={0: {"max_num_seqs": 2}}) == load_config(  # type: ignore[dict-item]
        stage_overrides='{"0": {"max_num_seqs": 2}}'
    )


@pytest.mark.parametrize(
    ("arguments", "field", "remedy"),
    [
        ({"platform": "tpu"}, "platform", "cuda"),
        ({"model_overlay": "huge"}, "model_overlay", "use one of tiny"),
        ({"flags": {"dtyp": "auto"}}, "dtyp", "nearest known field is dtype"),
        ({"flags": {"dtype": "float16"}}, "dtype", "'auto', 'float32' or 'bfloat16'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, field: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(**arguments)
    assert caught.value.field == field
    assert remedy in str(caught.value)


def test_a_refusal_takes_under_two_seconds_and_no_torch(write: Write) -> None:
    path = write(as_yaml({"diffusion_kv_mode": "paged_scheduler"}))
    code = f"""
import sys
from kit.config.load import load_config
from kit.errors import ConfigError
try:
    load_config({str(path)!r})
except ConfigError as error:
    assert "torch" not in sys.modules
    sys.exit(error.exit_code)
"""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 2
        times.append(time.perf_counter() - start)
    assert min(times) < 2


def test_all_of_config_imports_without_torch() -> None:
    code = """
import importlib, pkgutil, sys
import kit.config
for module in pkgutil.iter_modules(kit.config.__path__):
    importlib.import_module(f"kit.config.{module.name}")
assert "kit.config.runnable" in sys.modules
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
