"""docs/api.md against the server: its tables, and every curl line, sent as it stands there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from kit.api import ImageEngine, load_config
from kit.server.app import create_app
from kit.server.fields import ImageFields, NotSupported, markers
from kit.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "api.md", ROOT / "README.md"]
BASE = "http://localhost:8091"


@pytest.fixture(scope="module")
def api(checkpoint: Path) -> Iterator[TestClient]:
    config = load_config(checkpoint, "hunyuan_image3_paged.yaml")
    with ImageEngine(checkpoint, config) as engine:
        app = create_app(engine, ServerSettings("painter"))
        with TestClient(app, base_url=BASE) as client:
            yield client


def shown_requests() -> list[tuple[str, dict[str, Any]]]:
    """(path, body) of every curl line that posts something."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            words = shlex.split(block.replace("\\\n", " "))
            for at, word in enumerate(words):
                if word == "curl" and "-d" in words[at:]:
                    url = next(w for w in words[at:] if w.startswith("http"))
                    assert url.startswith(BASE), url
                    assert "Content-Type: application/json" in words[at:]
                    body = json.loads(words[words.index("-d", at) + 1])
                    found.append((url.removeprefix(BASE), body))
    return found


def test_the_pages_show_every_endpoint_that_draws() -> None:
    assert {path for path, _ in shown_requests()} == {
        "/v1/images/generations",
        "/v1/chat/completions",
        "/v1/jobs",
    }


@pytest.mark.parametrize(("path", "body"), shown_requests(), ids=lambda value: str(value)[:24])
def test_a_curl_line_works_as_it_stands(api: TestClient, path: str, body: dict[str, Any]) -> None:
    answer = api.post(path, json=body)
    assert answer.status_code == (202 if path == "/v1/jobs" else 200), answer.text
    if body.get("stream"):
        assert "image_generation.completed" in answer.text
    elif path == "/v1/jobs":
        assert api.delete(f"{path}/{answer.json()['id']}").status_code == 200


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = "\n" + (ROOT / "docs" / "api.md").read_text()
    table = text[text.index(f"\n{heading}\n") :].split("\n| --- ", 1)[1].split("\n", 1)[1]
    lines = table.split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_has_every_field_and_no_other() -> None:
    rows = rows_below("## Fields of a picture")
    assert [row[0].strip("`") for row in rows] == list(ImageFields.model_fields)
    refused = [row[0].strip("`") for row in rows if row[3].startswith("refused:")]
    marked = markers(ImageFields)
    assert refused == [name for name in marked if isinstance(marked[name], NotSupported)]


def test_ranges_in_the_table_are_those_of_the_schema() -> None:
    properties = ImageFields.model_json_schema()["properties"]
    checked = 0
    for name, shown, *_ in rows_below("## Fields of a picture"):
        field = properties[name.strip("`")]
        found = re.match(r"([\d.]+) to (2\^63 - 1|[\d.]+)", shown)
        if found:
            high = 2**63 - 1 if "^" in found[2] else float(found[2])
            assert (field["minimum"], field["maximum"]) == (float(found[1]), high), name
            checked += 1
    assert checked >= 8


def test_every_endpoint_is_listed_and_exists(api: TestClient) -> None:
    listed = set(re.findall(r"`(?:GET|POST|DELETE)? ?(/[\w/{}]+)`", str(rows_below("# HTTP API"))))
    served = {
        path.replace("{job_id}", "{id}").replace("{model}", "{id}")
        for path in api.get("/openapi.json").json()["paths"]
    }
    assert listed == served
