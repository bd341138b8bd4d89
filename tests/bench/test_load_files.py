"""Load files: those that ship can be read, and what is wrong in one is named."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.harness.load import LOADS, Load, find_load, load_from_json, load_names, read_load
from kit.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "benchmarking.md"

GOOD: dict[str, Any] = {
    "about": "For tests.",
    "prompts": ["a red vase", "a cat"],
    "sizes": ["256x256"],
    "steps": [4],
    "guidance": [5.0],
    "arrivals": {"kind": "closed", "concurrency": 2},
    "requests": 3,
}


def written(folder: Path, **changes: Any) -> Path:
    """Write a good load with changes; a field set to None is left out."""
    content = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("name", load_names())
def test_shipped_load(name: str) -> None:
    path = find_load(name)
    assert path is not None
    load = read_load(path)
    assert load.about.endswith(".")
    assert load_from_json(load.as_json(), "json") == load


def test_good_load_with_its_defaults(tmp_path: Path) -> None:
    load = read_load(written(tmp_path))
    assert (load.n, load.warmup, load.timeout_s, load.slo_latency_s) == (1, 1, 600.0, None)
    assert load.prompts == ("a red vase", "a cat")


def test_prompts_from_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a red vase\n\n  a cat\n")
    load = read_load(written(tmp_path, prompts="prompts.txt"))
    assert load == read_load(written(tmp_path))
    assert load.prompts_sha256 == read_load(written(tmp_path)).prompts_sha256


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"stpes": [4]}, "stpes", "fields of a load are about, prompts"),
        ({"prompts": None}, "prompts", "add it"),
        ({"prompts": []}, "prompts", "at least 1 item"),
        ({"prompts": "none.txt"}, "prompts", "no such text file next to the load file"),
        ({"sizes": ["256"]}, "sizes.0", "got '256'"),
        ({"sizes": "256x256"}, "sizes", "got '256x256'"),
        ({"steps": [0]}, "steps.0", "greater than or equal to 1 (got 0"),
        ({"steps": [4.5]}, "steps.0", "got 4.5"),
        ({"steps": ["4"]}, "steps.0", "valid integer (got '4'"),
        ({"guidance": [101.0]}, "guidance.0", "got 101.0"),
        ({"n": 11}, "n", "less than or equal to 10 (got 11"),
        ({"warmup": -1}, "warmup", "got -1"),
        ({"requests": None}, "requests", "give either requests or duration_s"),
        ({"duration_s": 3.0}, "requests", "and not both"),
        ({"arrivals": {"kind": "bursts"}}, "arrivals", "bursts"),
        ({"arrivals": {"kind": "closed"}}, "arrivals.concurrency", "add it"),
        ({"arrivals": {"kind": "closed", "concurrency": 0}}, "arrivals.concurrency", "got 0"),
        ({"arrivals": {"kind": "closed", "rate_per_s": 1.0}}, "arrivals", "concurrency"),
        (
            {"arrivals": {"kind": "poisson", "rate_per_s": 0.0, "seed": 1}},
            "arrivals.rate_per_s",
            "greater than 0 (got 0.0",
        ),
        ({"arrivals": {"kind": "trace", "offsets_s": [1.0]}}, "requests", "leave this out"),
        (
            {"arrivals": {"kind": "trace", "offsets_s": [1.0, 0.5]}, "requests": None},
            "arrivals.offsets_s",
            "must not decrease",
        ),
        ({"slo_latency_s": 0.0}, "slo_latency_s", "got 0.0"),
    ],
)
def test_a_wrong_load_is_refused_by_field(
    tmp_path: Path, changes: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_load(written(tmp_path, **changes))
    message = str(caught.value)
    assert message.startswith(f"{field}"), message
    assert reason in message
    assert "mine.yaml" in message or "got" not in message


def test_what_is_no_load_at_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match="load file: cannot be read"):
        read_load(path)
    path.write_text("- a")
    with pytest.raises(ConfigError, match="load file: must hold a mapping"):
        read_load(path)
    path.write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigError, match="set twice"):
        read_load(path)


def test_names() -> None:
    assert find_load("vase") == LOADS / "vase.yaml"
    assert find_load("vaze") is None
    assert find_load("some/where.yaml") == Path("some/where.yaml")


def test_every_field_is_documented_with_its_default_and_no_other() -> None:
    table = DOCS.read_text().split("## Loads", 1)[1].split("\n| --- ", 1)[1].split("\n\n", 1)[0]
    rows = [re.findall(r"`([^`]*)`", line)[0] for line in table.splitlines()[1:]]
    assert rows == [field.name for field in fields(Load)]
