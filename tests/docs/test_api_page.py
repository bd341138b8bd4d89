"""docs/api.md against the server: its tables, and every curl line, sent as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from golden_cases import GOLDEN
from PIL import Image

from kit.api import ImageEngine, load_config
from kit.server.app import create_app
from kit.server.fields import ImageFields, NotSupported, markers
from kit.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "api.md", ROOT / "README.md"]
BASE = "http://localhost:8091"
JSON = {"Content-Type": "application/json"}


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
    for block in shown_blocks():
        words = shlex.split(block.replace("\\\n", " "))
        for at, word in enumerate(words):
            if word == "curl" and "-d" in words[at:]:
                url = next(w for w in words[at:] if w.startswith("http"))
                assert url.startswith(BASE), url
                assert "Content-Type: application/json" in words[at:]
                body = words[words.index("-d", at) + 1]
                if body != "@-":
                    found.append((url.removeprefix(BASE), json.loads(body)))
    return found


def shown_blocks() -> list[str]:
    """The shell blocks of the pages."""
    fence = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [block for page in PAGES for block in fence.findall(page.read_text())]


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


def test_the_edit_through_a_pipe_works_as_it_stands(api: TestClient, tmp_path: Path) -> None:
    """The shell runs what stands before curl and behind it; curl's own part is posted here."""
    if missing := [name for name in ("jq", "base64") if shutil.which(name) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    shutil.copy(GOLDEN / "ref_image_0.png", tmp_path / "vase.png")
    [block] = [block for block in shown_blocks() if "-d @-" in block]
    before, asked = block.split("| curl ")
    asked, behind = asked.split("-d @-")
    body = run_shell(before.removesuffix("\\\n  "), tmp_path)
    answer = api.post(shlex.split(asked)[1], content=body, headers=JSON)
    assert answer.status_code == 200, answer.text
    request = answer.json()["choices"][0]["replay"]["record"]["request"]
    assert (request["prompt"], request["sampling"]["seed"]) == ("make the vase blue", 7)
    assert [(image["width"], image["height"]) for image in request["images"]] == [(150, 150)]
    run_shell(f"cat{behind}", tmp_path, answer.content)
    with Image.open(tmp_path / "blue.png") as image:
        image.load()
        assert image.format == "PNG"


def run_shell(line: str, folder: Path, given: bytes = b"") -> bytes:
    """Run a line in a folder and return what it prints."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        input=given,
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout


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
