"""Tables of settings and refusals in docs/: every setting is tried, and says what its row says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.cli import main
from kit.config.deploy import leaf_fields
from kit.config.foreign import FOREIGN_FIELDS
from kit.config.load import load_config
from kit.config.paths import configs_folder
from kit.config.runnable import check_runnable
from kit.config.yaml_file import read_yaml
from kit.errors import KitError
from kit.pipeline.schedule import flow_sigmas

DOCS = Path(__file__).parents[2] / "docs"
PAGED = "paged_kv_cache.md"
FLAGS = "its setting belongs:"


def rows_below(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = "\n" + (DOCS / page).read_text()
    table = text[text.index(f"{heading}\n") :].split("\n| --- ", 1)[1].split("\n", 1)[1]
    lines = table.split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def said(deploy_config: str, settings: dict[str, Any]) -> str:
    """What a start with the shipped checkpoint answers to settings; empty if nothing."""
    try:
        check_runnable(
            load_config(deploy_config, stage_overrides={"0": settings}, model_overlay="tiny")
        )
    except KitError as error:
        return str(error)
    return ""


REFUSED = rows_below(PAGED, "## When it is refused")


def test_the_paged_page_shows_the_packaged_file() -> None:
    text = (DOCS / PAGED).read_text()
    shown = text.split("```yaml\n")[1].split("```")[0]
    packaged = read_yaml(configs_folder() / "deploy" / "hunyuan_image3_paged.yaml", "packaged")
    del packaged["base_config"]
    assert yaml.safe_load(shown) == packaged


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_the_paged_page_quotes_what_is_said(row: list[str]) -> None:
    settings, message = json.loads(row[0].strip("`")), row[1].strip("`")
    base = "hunyuan_image3_paged"
    if None in settings.values():  # a null sets nothing, so the file must not set it either
        base = "hunyuan_image3_dit"
    assert message in said(base, settings)


def test_what_the_paged_page_refuses_is_refused_for_that_setting_alone() -> None:
    assert said("hunyuan_image3_paged", {}) == ""
    assert len(REFUSED) >= 15


def test_fields_of_the_paged_page_are_the_schemas() -> None:
    defaults = {
        name.removeprefix("stage."): info.get_default(call_default_factory=True)
        for name, info in leaf_fields()
    }
    rows = rows_below(PAGED, "## Configure")
    assert {row[0].strip("`") for row in rows} >= {
        name for name in defaults if name.startswith("diffusion_kv_")
    }
    for name, default, _ in rows:
        value = defaults[name.strip("`")]
        shown = "null" if value is None else str(value)
        assert default.strip("`") == (shown.lower() if isinstance(value, bool) else shown), name


MIGRATING = "migrating_from_vllm_omni.md"


@pytest.mark.parametrize("row", rows_below(MIGRATING, FLAGS), ids=lambda row: row[0])
def test_flags_of_vllm_omni_get_the_answer_that_the_page_quotes(
    row: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "folder", *shlex.split(row[0].strip("`"))])
    assert caught.value.code == 2
    assert row[1].strip("`") in capsys.readouterr().err


def foreign_table() -> str:
    """Known fields of vLLM-Omni by what is said of them, in the order of the code."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for name, field in FOREIGN_FIELDS.items():
        key = (field.reason, field.remedy, field.is_harmless)
        groups.setdefault(key, []).append(f"`{name}`")
    lines = [
        f"| {', '.join(names)} | "
        f"{f'(a warning) {reason}' if is_harmless else f'{reason}; {remedy}'} |"
        for (reason, remedy, is_harmless), names in groups.items()
    ]
    return "\n".join(lines)


def test_the_table_of_fields_without_effect_is_the_codes() -> None:
    table = foreign_table()
    text = (DOCS / MIGRATING).read_text()
    assert f"| --- | --- |\n{table}\n\n" in text, f"put this there:\n{table}"


def test_a_flag_that_nobody_has_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--unheard-of", "1"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("unrecognized arguments: --unheard-of")


def test_the_noise_levels_that_the_page_names_are_the_schedules() -> None:
    level = round(float(flow_sigmas(8, 3.0)[1]), 4)
    assert f"the second level is {level} here" in (DOCS / MIGRATING).read_text()
