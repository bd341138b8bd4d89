"""A real `kit serve` process asked with curl, and by many clients at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pictures import decode_b64, decode_url
from PIL import Image

from bench.server_process import ServerProcess, image_body

BODY: dict[str, Any] = {
    "modalities": ["image"],
    "messages": [{"role": "user", "content": "A red ceramic vase on a wooden table"}],
    "extra_body": {
        "height": 256,
        "width": 256,
        "num_inference_steps": 3,
        "guidance_scale": 5.0,
        "seed": 1234,
    },
}
CHAT, IMAGES = "/v1/chat/completions", "/v1/images/generations"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the paged overlay."""
    log = tmp_path_factory.mktemp("serve") / "log"
    flags = ("--omni", "--trust-remote-code", "--deploy-config", "hunyuan_image3_paged.yaml")
    with ServerProcess(log, *flags) as server:
        server.wait_until_ready()
        yield server
        assert server.stop() == 0


def test_the_guides_curl_line_gives_a_png(server: ServerProcess, tmp_path: Path) -> None:
    """The line as a reader types it: curl, jq, cut, base64."""
    missing = [name for name in ("curl", "jq", "base64") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    line = (
        f"curl -s {server.url}{CHAT} -H 'Content-Type: application/json' -d '{json.dumps(BODY)}'"
        " | jq -r '.choices[0].message.content[0].image_url.url'"
        " | cut -d',' -f2- | base64 -d > vase.png"
    )
    subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    with Image.open(tmp_path / "vase.png") as image:
        image.load()
        assert (image.format, image.size) == ("PNG", (256, 256))


def test_nested_and_flat_fields_give_the_same_picture(server: ServerProcess) -> None:
    flat = {**BODY, **BODY["extra_body"]}
    del flat["extra_body"]
    pictures = []
    for body in (BODY, flat):
        status, text = server.post(CHAT, body)
        assert status == 200, text
        answer = json.loads(text)
        assert answer["sampling"]["seed"] == 1234
        assert answer["warnings"] == []
        pictures.append(decode_url(answer["choices"][0]["message"]["content"]))
    assert pictures[0].size == (256, 256)
    assert pictures[0].tobytes() == pictures[1].tobytes()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_clients", [8, pytest.param(64, marks=pytest.mark.long)])
def test_every_client_of_many_gets_what_it_would_get_alone(
    server: ServerProcess, num_clients: int
) -> None:
    bodies = [
        image_body(f"picture number {i}", seed=1000 + i, guidance_scale=1 + i % 2)
        for i in range(num_clients)
    ]

    def ask(body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(
            server.url + IMAGES, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as response:  # the last one waits long
            answer = json.load(response)
        [image] = answer["data"]
        recorded = image["replay"]["record"]["request"]
        assert (recorded["prompt"], image["seed"]) == (body["prompt"], body["seed"])
        return decode_b64(image["b64_json"]).tobytes()

    with ThreadPoolExecutor(num_clients) as pool:
        together = list(pool.map(ask, bodies))
    assert len(set(together)) == num_clients
    assert [ask(body) for body in bodies] == together
    server.wait_until_idle()


def test_log_names_what_runs_and_says_paged_only_after_it_ran(server: ServerProcess) -> None:
    assert server.post(CHAT, BODY, **{"x-request-id": "looked-for-17"})[0] == 200
    # The line of a request is written when its answer has been sent.
    server.wait_for(lambda: "looked-for-17" in server.log)
    text = server.log
    for part in (
        "dtype float32",
        "KV mode paged_scheduler",
        "resolved backend FLASH_ATTN",
        "kernel cpu_reference",
        "page pool:",
        "pages of 32 tokens",
        "pool ",
    ):
        assert part in text
    assert text.index("serving ") < text.index("paged native path active")
    assert text.count("paged native path active") == 1
    assert "not needed" in text
