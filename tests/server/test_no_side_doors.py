"""Whatever a request says, no path in it reaches the file system and no URL the network."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from kit.api import ImageEngine, load_config
from kit.server.app import create_app
from kit.server.fields import ImageFields
from kit.server.protocol import ChatCompletionBody, ImageEditForm, ImageGenerationBody
from kit.server.settings import ServerSettings

MARKER = "audit-marker"
DOORS = ("open", "os.", "socket.", "shutil.", "glob.", "subprocess.", "pathlib.", "tempfile.")
PLACES = (
    f"/etc/{MARKER}",
    f"../../{MARKER}",
    f"file:///etc/{MARKER}",
    f"http://127.0.0.1:9/{MARKER}",
    f"http://{MARKER}.invalid/x.png",
    f"https://169.254.169.254/{MARKER}",
    f"data:text/plain,{MARKER}",
)

# pytest puts the names of tests into the environment, which the watch would see.
IDS = [f"place{number}" for number in range(len(PLACES))]


class Watch:
    """Collects what Python's audit hooks see of the marker at the doors, while it looks."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_looking = False
        sys.addaudithook(self._hook)  # for good: hooks cannot be taken away

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_looking and event.startswith(DOORS) and MARKER in repr(arguments):
            self.seen.append(f"{event} {arguments!r:.200}")


@pytest.fixture(scope="module")
def hooked() -> Watch:
    return Watch()


@pytest.fixture
def watch(hooked: Watch) -> Iterator[Watch]:
    hooked.seen.clear()
    hooked.is_looking = True
    yield hooked
    hooked.is_looking = False
    assert hooked.seen == []


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[TestClient]:
    with ImageEngine(checkpoint, load_config(checkpoint)) as engine:
        app = create_app(engine, ServerSettings(name="m"))
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client


def test_the_watch_sees_what_it_is_for(hooked: Watch, tmp_path: Path) -> None:
    hooked.is_looking = True
    (tmp_path / MARKER).write_text("x")
    hooked.is_looking = False
    assert [line.split()[0] for line in hooked.seen] == ["open"]


QUICK = {"size": "256x256", "num_inference_steps": 1}


@pytest.mark.parametrize("name", sorted(ImageGenerationBody.model_fields))
def test_generations(client: TestClient, watch: Watch, name: str) -> None:
    del watch
    for place in PLACES:
        body = {"prompt": "a cat", **QUICK, name: place}
        # A prompt may say anything; drawing it once is enough.
        status = client.post("/v1/images/generations", json=body).status_code
        if name in ("prompt", "system_prompt", "cot_text", "user", "safety_identifier"):
            assert status == 200
            break
        assert 400 <= status < 500, name


@pytest.mark.parametrize(
    "name", ["trace_path", "path", "file", "image", "lora", "lora_path", "image_url", "output"]
)
def test_fields_that_other_servers_read_files_by(
    client: TestClient, watch: Watch, name: str
) -> None:
    del watch
    for place in PLACES:
        for body in (
            {"prompt": "a cat", **QUICK, name: place},
            {"prompt": "a cat", **QUICK, "extra_body": {name: place}},
            {"prompt": "a cat", **QUICK, name: {"path": place, "url": place}},
        ):
            assert client.post("/v1/images/generations", json=body).status_code == 400


@pytest.mark.parametrize("place", PLACES, ids=IDS)
def test_parts_of_a_conversation(client: TestClient, watch: Watch, place: str) -> None:
    del watch
    text = {"type": "text", "text": "a cat"}
    for part in (
        {"type": "image_url", "image_url": {"url": place}},
        {"type": "image_url", "image_url": place},
        {"type": "file", "file": {"file_id": place, "file_data": place}},
        {"type": "video_url", "video_url": {"url": place}},
        {"type": "input_audio", "input_audio": {"data": place, "format": "wav"}},
        {"type": "input_image", "image_url": place},
    ):
        body = {"messages": [{"role": "user", "content": [text, part]}], "modalities": ["image"]}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("messages[0].content")


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("place", PLACES, ids=IDS)
def test_forms(client: TestClient, watch: Watch, place: str) -> None:
    del watch
    fields = {"prompt": "a cat", "size": "256x256", "num_inference_steps": "1"}
    named = client.post("/v1/images/edits", data=fields, files={"image": (place, png(), place)})
    assert named.status_code == 200
    for name in ("url", "url[]", "image", "image[]", "mask", "reference_image", "trace_path"):
        files = {"image": ("x.png", png(), "image/png")}
        answer = client.post("/v1/images/edits", data={**fields, name: place}, files=files)
        assert 400 <= answer.status_code < 500, (name, answer.text)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/{}", "/{}", "/docs/{}", "/v1/models/{}", "/static/{}", "/v1/kv?file={}"]
)
def test_paths_and_queries(client: TestClient, watch: Watch, path: str) -> None:
    del watch
    for place in (MARKER, f"..%2f..%2f{MARKER}", f"%2fetc%2f{MARKER}", f"..\\{MARKER}"):
        assert client.get(path.format(place)).status_code in (200, 400, 404)


def test_every_text_field_of_every_body_is_known_here() -> None:
    """A field that names a file or a place would be a door: this list is looked at on purpose."""
    names = {
        name
        for model in (ImageFields, ImageGenerationBody, ChatCompletionBody, ImageEditForm)
        for name in model.model_fields
    }
    suspicious = {name for name in names if any(word in name for word in ("url", "path", "file"))}
    assert suspicious == {"url"}, "url is refused, see test_forms"
