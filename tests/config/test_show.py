from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kit.config.deploy import DeployConfig, leaf_fields, leaf_values, value_of
from kit.config.load import load_config
from kit.config.paths import packaged_names
from kit.config.show import describe

NAMES = [name for name, _ in leaf_fields()]


def values(config: DeployConfig) -> dict[str, object]:
    return dict(leaf_values(config))


@pytest.mark.parametrize("overlay", [None, "tiny"])
@pytest.mark.parametrize("name", [None, *packaged_names("deploy"), "omni"])
def test_the_text_is_a_deploy_file_of_the_same_values(
    write: Callable[..., Path], omni_file: Path, name: str | None, overlay: str | None
) -> None:
    config = load_config(omni_file if name == "omni" else name, model_overlay=overlay)
    path = write(describe(config), "described.yaml")
    assert values(load_config(path)) == values(config)


def test_every_value_stands_beside_its_source(omni_file: Path) -> None:
    config = load_config(omni_file, flags={"dtype": "bfloat16"})
    lines = describe(config).splitlines()
    rows = [line for line in lines if "  # " in line]
    assert len(rows) == len(NAMES)
    for row, name in zip(rows, NAMES, strict=True):
        text, source = row.split("  # ", 1)
        leaf = name.rpartition(".")[2]
        shown = yaml.safe_load(text.strip().removeprefix("- "))
        assert shown == {leaf: value_of(config, name)}
        assert source == config.provenance[name]
    assert "dtype: bfloat16 " in rows[1]
    assert rows[1].endswith("# --dtype")
    assert len({row.index("  # ") for row in rows}) == 1


def test_warnings_stand_at_the_end() -> None:
    config = load_config(stage_overrides={"0": {"kv_cache_memory_bytes": 512}})
    assert describe(config).splitlines()[-1] == f"# warning: {config.warnings[0]}"


def test_awkward_values_and_paths_survive(write: Callable[..., Path]) -> None:
    devices = ", ".join(str(index) for index in range(64))
    path = write(
        f"""
        stages:
          - stage_id: 0
            devices: "{devices}"
            gpu_memory_utilization: 1.0e-7
            tensor_parallel_size: 64
        """,
        "strange: name\n- x.yaml",
    )
    config = load_config(path)
    again = load_config(write(describe(config), "described.yaml"))
    assert values(again) == values(config)


def test_a_list_stands_on_its_line(write: Callable[..., Path]) -> None:
    stage = {
        "diffusion_kv_mode": "paged_scheduler",
        "diffusion_kv_max_rows_per_request": 2,
        "enable_prefix_caching": True,
        "prefix_caching_levels": ["rows", "images"],
    }
    config = load_config(stage_overrides={"0": stage})
    assert "    prefix_caching_levels: [rows, images] " in describe(config)
    assert values(load_config(write(describe(config), "described.yaml"))) == values(config)


def test_the_order_is_stable() -> None:
    assert describe(load_config()) == describe(load_config("hunyuan_image3_dit"))
