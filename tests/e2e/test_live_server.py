"""One real server under clients that leave, die, send too much or come too many."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bench.server_process import PATIENCE_S, ServerProcess, image_body

IMAGES = "/v1/images/generations"
LONG = image_body(num_inference_steps=1000)
OVERRIDES = {
    "0": {
        "diffusion_kv_mode": "paged_scheduler",
        "diffusion_kv_max_rows_per_request": 2,
        "max_queued_requests": 1,
    }
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("live") / "log"
    flags = ("--stage-overrides", json.dumps(OVERRIDES), "--max-body-bytes", str(1 << 20))
    with ServerProcess(log, *flags) as server:
        server.wait_until_ready()
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def send_raw(server: ServerProcess, body: Any) -> socket.socket:
    """Send a request and return its connection without reading the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = (
        f"POST {IMAGES} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    connection.sendall(head.encode() + data)
    return connection


def curl(server: ServerProcess) -> list[str]:
    return ["curl", "-s", server.url + IMAGES, "-H", "Content-Type: application/json"]


def wait_for_step(server: ServerProcess) -> str:
    """Return the id of the running request once it has made a step."""
    [held] = server.wait_for(
        lambda: [r for r in server.kv()["requests"] if r["state"] == "running" and r["step"] > 0]
    )
    return str(held["request_id"])


@pytest.mark.parametrize("abort", [False, True], ids=["close", "reset"])
def test_a_client_that_leaves_stops_its_request_at_the_next_step(
    server: ServerProcess, abort: bool
) -> None:
    connection = send_raw(server, LONG)
    wait_for_step(server)
    if abort:  # a zero linger time sends a reset in place of an orderly end
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()
    server.wait_until_idle()
    steps = server.metric("kit_steps_total")
    time.sleep(0.5)
    assert server.metric("kit_steps_total") == steps < LONG["num_inference_steps"]


def test_a_client_that_is_killed_stops_its_request(server: ServerProcess) -> None:
    before = server.metric('kit_requests_total{outcome="cancelled"}')
    command = [*curl(server), "-d", json.dumps(LONG)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
        wait_for_step(server)
        client.kill()
    server.wait_until_idle()
    assert server.metric('kit_requests_total{outcome="cancelled"}') == before + 1


def test_a_client_that_leaves_the_queue_is_gone_at_once(server: ServerProcess) -> None:
    running, waiting = send_raw(server, LONG), None
    try:
        wait_for_step(server)
        waiting = send_raw(server, LONG)
        server.wait_for(lambda: server.metric("kit_queue_requests") == 1)
        waiting.close()
        server.wait_for(lambda: server.metric("kit_queue_requests") == 0)
        assert server.metric("kit_running_requests") == 1
    finally:
        running.close()
    server.wait_until_idle()


def test_a_full_queue_answers_503_with_retry_after(server: ServerProcess) -> None:
    server.post(IMAGES, image_body())
    held = [send_raw(server, LONG)]
    wait_for_step(server)
    held.append(send_raw(server, LONG))
    server.wait_for(lambda: server.metric("kit_queue_requests") == 1)
    request = urllib.request.Request(
        server.url + IMAGES, json.dumps(LONG).encode(), {"Content-Type": "application/json"}
    )
    started = time.monotonic()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    assert time.monotonic() - started < 10
    with refused.value as answer:
        assert answer.code == 503
        assert 1 <= int(answer.headers["Retry-After"]) < PATIENCE_S
        assert answer.headers["x-should-retry"] is None
        assert "max_queued_requests" in json.load(answer)["error"]["message"]
    for connection in held:
        connection.close()
    server.wait_until_idle()


def test_a_time_limit_is_504_in_the_queue_and_while_it_runs(server: ServerProcess) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.post, IMAGES, {**LONG, "timeout_s": 3})
        wait_for_step(server)
        waiting = pool.submit(server.post, IMAGES, {**LONG, "timeout_s": 0.3})
        for future, words in ((waiting, "timeout_s is 0.3"), (running, "after step")):
            status, text = future.result(PATIENCE_S)
            assert status == 504
            assert words in json.loads(text)["error"]["message"]
    server.wait_until_idle()


@pytest.mark.parametrize("header", [[], ["-H", "Transfer-Encoding: chunked"]])
def test_a_body_that_is_too_long_is_413(server: ServerProcess, header: list[str]) -> None:
    body = json.dumps(image_body("a" * (2 << 20)))
    command = [*curl(server), *header, "--data-binary", "@-", "-w", "\n%{http_code}"]
    done = subprocess.run(command, input=body, capture_output=True, text=True, check=True)
    text, status = done.stdout.rsplit("\n", 1)
    assert status == "413"
    assert str(1 << 20) in json.loads(text)["error"]["message"]


def test_a_client_that_never_ends_its_body_holds_nothing(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST {IMAGES} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
    connections = []
    for sent in (b"", b"{"):
        connections.append(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
        connections[-1].sendall(head.encode() + sent)
    assert server.get("/ready")[0] == 200
    assert server.post(IMAGES, image_body())[0] == 200
    for connection in connections:
        connection.close()
    server.wait_until_idle()


def test_a_url_in_a_request_is_never_asked(server: ServerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        for place in (url, "data:image/png;base64,AAAA", "file:///etc/hostname"):
            part = {"type": "image_url", "image_url": {"url": place}}
            body = {"messages": [{"role": "user", "content": [part]}], "modalities": ["image"]}
            status, text = server.post("/v1/chat/completions", body)
            assert status == 400
            words = "cannot be read as a png" if place.startswith("data:") else "fetches nothing"
            assert words in json.loads(text)["error"]["message"]
        with pytest.raises(TimeoutError):
            listener.accept()
