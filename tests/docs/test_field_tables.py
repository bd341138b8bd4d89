"""The tables in docs/ against the code they describe."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from kit.config.deploy import leaf_fields
from kit.config.paths import packaged_names
from kit.request import GenerationRequest, SamplingParams

DOCS = Path(__file__).parent.parent.parent / "docs"


def first_column(name: str, heading: str) -> list[str]:
    """Return the first cells of the first table after a line that starts with `heading`."""
    text = (DOCS / name).read_text()
    table = text[f"\n{text}".index(f"\n{heading}") :].split("\n| --- ", 1)[1].split("\n", 1)[1]
    lines = table.split("\n\n", 1)[0].splitlines()
    return [line.split("|")[1].strip().strip("`") for line in lines]


def test_every_setting_is_documented_and_nothing_else() -> None:
    wanted = [name.removeprefix("stage.") for name, _ in leaf_fields()]
    assert first_column("configuration.md", "## Fields") == wanted


def test_defaults_in_the_table_are_the_schemas() -> None:
    text = (DOCS / "configuration.md").read_text()
    for name, info in leaf_fields():
        default = info.get_default(call_default_factory=True)
        shown = "null" if default is None else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
        assert f"| `{name.removeprefix('stage.')}` | `{shown}` |" in text


def test_request_fields_are_documented() -> None:
    cells = first_column("requests.md", "# Requests")
    documented = set(re.findall(r"\w+", " ".join(cells)))
    internal = {"sampling", "request_id", "parent_id", "trace_path"}
    names = {f.name for f in (*fields(SamplingParams), *fields(GenerationRequest))}
    assert names - internal <= documented


def test_every_packaged_deploy_file_is_listed() -> None:
    assert set(first_column("configuration.md", "Packaged, by bare name")) == set(
        packaged_names("deploy")
    )
