"""The unmodified openai package against a live server: 1.x, 2.x and 3.x, sync and async."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import openai_exercise
import pytest
from golden_cases import GOLDEN

from bench.server_process import ServerProcess
from kit.checkpoint.shipped import GOLDEN_CHECKPOINT

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("openai") / "log"
    with ServerProcess(log, "--deploy-config", "hunyuan_image3_paged.yaml") as server:
        server.wait_until_ready()
        yield server
        server.wait_until_idle()
        assert server.stop() == 0


# The version that is installed runs in every tier; the others are installed beside it.
OTHERS = [pytest.param(major, marks=pytest.mark.long) for major in ("1", "2")]


@pytest.fixture(scope="module", params=["installed", *OTHERS])
def seen(
    request: pytest.FixtureRequest,
    server: ServerProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    """What one version of the client saw."""
    environment, major = dict(os.environ), request.param
    if major != "installed":
        folder = install(f"openai>={major},<{int(major) + 1}", tmp_path_factory.mktemp("client"))
        environment["PYTHONPATH"] = str(folder)
    done = subprocess.run(
        [sys.executable, openai_exercise.__file__, server.url],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: Seen = json.loads(done.stdout)
    if major != "installed":
        assert result["version"].split(".")[0] == major
        assert result["where"].startswith(str(folder))
    return result


def install(requirement: str, folder: Path) -> Path:
    """Install a client beside the environment; what it needs is there but for one package."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*command, requirement, "distro"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_way_to_ask_gives_the_same_pictures(seen: Seen) -> None:
    sync, later = seen["sync"], seen["async"]
    first, second = sync["images"]
    assert first["format"] == "PNG"
    assert first["size"] == [256, 256]
    assert first["sha256"] != second["sha256"]
    assert sync["chat"] == [first, second]
    assert sync["chat_seeds"] == [11, 12]
    assert later["images"] == later["chat"] == [first]
    assert sync["chat_stream"] == [first]
    for stream in (sync["image_stream"][-1:], later["image_stream"]):
        assert stream == [["image_generation.completed", first]]


def test_streams_have_the_events_that_the_client_knows(seen: Seen) -> None:
    sync = seen["sync"]
    kinds = [kind for kind, _ in sync["image_stream"]]
    assert kinds == ["image_generation.partial_image", "image_generation.completed"]
    assert sync["image_stream"][0][1]["sha256"] != sync["image_stream"][1][1]["sha256"]
    assert sync["chat_stream_finish"] == [None, "stop"]
    assert 2 * sync["chat_stream_usage"] == sync["chat_usage"] == sync["images_usage"]


def test_models_and_the_facts_beside_openais_fields(seen: Seen) -> None:
    sync = seen["sync"]
    assert sync["models"] == [openai_exercise.MODEL] == [sync["model"]]
    assert sync["chat_warnings"] == []
    assert {"queue_time_s", "step_times_s", "decode_time_s"} <= set(sync["images_metrics"])
    assert sync["images_request_id"]


FAILURES: list[tuple[str, str, int, str | None, str | None, str]] = [
    # name, class, status, param, code, words
    ("bad value", "BadRequestError", 400, "num_inference_steps", None, "from 1 to 1000"),
    ("bad size", "BadRequestError", 400, "size", None, "256x256"),
    ("unknown field", "BadRequestError", 400, "num_steps", "unknown_parameter", "did you mean"),
    ("unknown model", "NotFoundError", 404, "model", "model_not_found", "gpt-image-1"),
    ("broken image", "BadRequestError", 400, "image", None, "cannot be read as a png"),
    ("two images and a mask", "BadRequestError", 400, "mask", None, "takes no mask"),
    ("no image", "BadRequestError", 400, "image", None, "missing"),
    ("wrong field of an edit", "BadRequestError", 400, "url", None, "fetches nothing"),
    ("number of an edit", "BadRequestError", 400, "seed", None, "got '07', expected a number"),
    ("variation", "NotFoundError", 404, None, None, "Not Found"),
    ("deadline", "InternalServerError", 504, None, "deadline_exceeded", "timeout_s"),
]


@pytest.mark.parametrize(
    ("name", "kind", "status", "param", "code", "words"), FAILURES, ids=lambda v: str(v)[:30]
)
def test_errors_reach_the_caller(
    seen: Seen, name: str, kind: str, status: int, param: str | None, code: str | None, words: str
) -> None:
    error = seen["sync"]["failures"][name]
    assert error["kinds"][0] == kind
    assert (error["status"], error["param"], error["code"]) == (status, param, code)
    assert words in error["message"]
    assert error["request_id"]


def test_a_failure_that_would_repeat_is_not_sent_again(seen: Seen) -> None:
    """The client may try twice more; with waits between that takes more than two limits."""
    assert 0.3 <= seen["sync"]["failures"]["deadline"]["seconds"] < 0.3 + 5
    assert seen["sync"]["failures"]["deadline"]["status"] == 504


def test_what_goes_wrong_in_a_stream_raises(seen: Seen) -> None:
    for name in ("deadline in a stream", "deadline in chunks"):
        error = seen["sync"]["failures"][name]
        assert error["kinds"][0] == "APIError"
        assert error["code"] == "deadline_exceeded"
        assert "timeout_s" in error["message"]


def test_the_clients_own_time_out_ends_the_request(seen: Seen, server: ServerProcess) -> None:
    for error in (seen["sync"]["failures"]["own time-out"], seen["async"]["own time-out"]):
        assert error["kinds"][0] == "APITimeoutError"
    server.wait_until_idle()


def test_an_edit_is_the_same_picture_in_async(seen: Seen) -> None:
    (edited,) = seen["sync"]["edit"]
    assert seen["async"]["edit"] == [edited]
    assert edited["sha256"] not in {one["sha256"] for one in seen["sync"]["images"]}


@pytest.mark.long
def test_edits_and_image_parts_of_a_checkpoint_that_reads_them(tmp_path: Path) -> None:
    """The same picture by both doors, and by a stream."""
    names = ("ref_image_0.png", "ref_image_1.png")
    fields: dict[str, Any] = {"seed": 7, "num_inference_steps": 2}
    files = [(name, (GOLDEN / name).read_bytes()) for name in names]
    urls = ["data:image/png;base64," + base64.b64encode(data).decode() for _, data in files]
    parts: list[Any] = [{"type": "text", "text": "make it blue"}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    with ServerProcess(tmp_path / "log", str(GOLDEN_CHECKPOINT)) as server:
        server.wait_until_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            edited = client.images.edit(prompt="make it blue", image=files, extra_body=fields)
            *_, last = client.images.edit(
                prompt="make it blue", image=files, stream=True, extra_body=fields
            )
            with pytest.raises(openai.BadRequestError, match="cannot be read") as refused:
                client.images.edit(prompt="make it blue", image=[files[0], ("b.png", b"text")])
        body = fields | {"messages": [{"role": "user", "content": parts}]}
        status, chat = server.post("/v1/chat/completions", body)
        assert server.stop() == 0
    assert refused.value.param == "image[1]"
    assert edited.data is not None
    picture = edited.data[0].b64_json
    assert (last.type, last.b64_json) == ("image_edit.completed", picture)
    assert status == 200
    [content] = json.loads(chat)["choices"][0]["message"]["content"]
    assert content["image_url"]["url"] == f"data:image/png;base64,{picture}"
