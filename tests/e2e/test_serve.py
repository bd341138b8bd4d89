"""A real `kit serve` process, asked by curl and by the unmodified openai client."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from PIL import Image

REPO = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start the server with the paged overlay; yields its URL and its log file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-m", "kit.cli", "serve", "--omni", "--trust-remote-code"]
    command += ["--port", str(port), "--deploy-config", "hunyuan_image3_paged.yaml"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(url, process, log)
        yield url, log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    pytest.fail(f"the server did not come up:\n{log.read_text()}")


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


def decode(content: Any) -> Image.Image:
    url = content[0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")
    return Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))


def test_the_guides_curl_line_gives_a_png(server: tuple[str, Path]) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed here")
    url, _ = server
    line = [curl, "-s", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    answer = subprocess.run([*line, "-d", json.dumps(BODY)], capture_output=True, check=True)
    body = json.loads(answer.stdout)
    image = decode(body["choices"][0]["message"]["content"])
    assert image.format == "PNG"
    assert image.size == (256, 256)
    assert body["sampling"]["seed"] == 1234
    assert body["warnings"] == []


def test_the_openai_client_flattens_extra_body_and_gets_the_same_picture(
    server: tuple[str, Path],
) -> None:
    url, _ = server
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(BODY).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        nested = json.loads(response.read())
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        [model] = client.models.list().data
        flat = client.chat.completions.create(
            model=model.id, messages=BODY["messages"], extra_body=BODY["extra_body"]
        )
    images = [
        decode(nested["choices"][0]["message"]["content"]),
        decode(flat.choices[0].message.content),
    ]
    assert images[0].tobytes() == images[1].tobytes()
    assert any("modalities" in warning for warning in flat.model_extra["warnings"])


def test_errors_reach_the_openai_client_with_param_and_text(server: tuple[str, Path]) -> None:
    url, _ = server
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(BadRequestError) as refused:
            client.chat.completions.create(
                model="hunyuan_image3_golden",
                messages=BODY["messages"],
                extra_body={"height": 250, "width": 256},
            )
        assert refused.value.param == "size"
        assert "256x256" in str(refused.value)
        with pytest.raises(NotFoundError) as unknown:
            client.chat.completions.create(model="gpt-image-1", messages=BODY["messages"])
        assert unknown.value.code == "model_not_found"


def test_log_names_what_runs_and_says_paged_only_after_it_ran(server: tuple[str, Path]) -> None:
    url, log = server
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(BODY).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()
    text = log.read_text()
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
    assert "neither is needed" in text or "not needed" in text
