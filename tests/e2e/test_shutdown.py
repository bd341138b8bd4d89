"""A real server and its signals: who is served to the end, who is refused, and the exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.server_process import PATIENCE_S, ServerProcess, image_body

PAGED = ("--deploy-config", "hunyuan_image3_paged.yaml")
IMAGES = "/v1/images/generations"
Answer = tuple[int, str]


def message(answer: Answer) -> str:
    return str(json.loads(answer[1])["error"]["message"])


def start_running(server: ServerProcess, pool: ThreadPoolExecutor, steps: int) -> Future[Answer]:
    """Send a request and return when it has made a step."""
    server.wait_until_ready()
    running = pool.submit(server.post, IMAGES, image_body(num_inference_steps=steps))
    server.wait_for(lambda: [held for held in server.kv()["requests"] if held["step"] > 0])
    return running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_with_exit_0(number: signal.Signals, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log") as server:
        server.wait_until_ready()
        asked = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - asked < 10
        assert "Traceback" not in server.log
        assert server.log.rstrip().endswith("stopped")


def test_a_signal_while_weights_load_ends_with_exit_0(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log") as server:
        assert server.url
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_a_signal_at_the_first_word_of_the_address_ends_with_exit_0() -> None:
    program = """
import logging, os, signal, sys
from kit.cli import main

class SignalOnAddress(logging.Filter):
    def filter(self, record):
        if record.getMessage().startswith("serving "):
            os.kill(os.getpid(), signal.SIGTERM)
        return True

logging.getLogger("kit.server").addFilter(SignalOnAddress())
sys.exit(main(["serve", "--port", "0"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "SIGTERM: no more requests" in done.stderr


def test_the_running_request_is_served_and_all_others_are_refused(tmp_path: Path) -> None:
    flags = (*PAGED, "--shutdown-grace-s", str(PATIENCE_S))
    with ServerProcess(tmp_path / "log", *flags) as server, ThreadPoolExecutor() as pool:
        running = start_running(server, pool, steps=60)
        waiting = pool.submit(server.post, IMAGES, image_body())
        server.wait_for(lambda: json.loads(server.get("/ready")[1])["num_queued_requests"] == 1)
        server.process.send_signal(signal.SIGTERM)
        refused = waiting.result(PATIENCE_S)
        assert refused[0] == 503
        assert "shutting down" in message(refused)
        assert not running.done(), "the running request was too short for this test"
        late = server.post(IMAGES, image_body())
        assert late[0] == 503
        assert "shutting down" in message(late)
        assert server.get("/health")[0] == 200
        ready = server.get("/ready")
        assert (ready[0], json.loads(ready[1])["reason"]) == (503, "shutting down")
        status, body = running.result(PATIENCE_S)
        assert status == 200
        assert json.loads(body)["data"][0]["b64_json"]
        assert server.process.wait(PATIENCE_S) == 0


def test_a_request_longer_than_the_grace_is_stopped_with_a_reason(tmp_path: Path) -> None:
    flags = (*PAGED, "--shutdown-grace-s", "0.5")
    with ServerProcess(tmp_path / "log", *flags) as server, ThreadPoolExecutor() as pool:
        running = start_running(server, pool, steps=1000)
        with subprocess.Popen(
            ["curl", "-sN", f"{server.url}/v1/kv?stream=true"], stdout=subprocess.PIPE
        ) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == b"event: kv\n"
            assert server.stop() == 0
            assert watcher.wait(PATIENCE_S) == 0, "the event stream must end, not break"
        status, _ = answer = running.result(PATIENCE_S)
        assert status == 503
        assert "shutting down" in message(answer)
        assert "after step" in message(answer)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log", *PAGED) as server, ThreadPoolExecutor() as pool:
        running = start_running(server, pool, steps=1000)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: "no more requests" in server.log)
        asked = time.monotonic()
        assert server.stop() == 128 + signal.SIGTERM
        assert time.monotonic() - asked < 10
        assert isinstance(running.exception(PATIENCE_S), OSError)


def test_a_port_in_use_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log") as server:
        port = server.url.rsplit(":", 1)[1]
        started = time.monotonic()
        second = subprocess.run(
            [sys.executable, "-m", "kit.cli", "serve", "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )
        elapsed = time.monotonic() - started
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert f"--port: is in use already (got {port}" in second.stderr
    assert elapsed < 15, "it loaded something first"


def test_the_key_guards_a_real_server_and_shows_nowhere(tmp_path: Path) -> None:
    key = "sk-of-the-operator"
    with ServerProcess(tmp_path / "log", env={"KIT_API_KEY": key}) as server:
        server.wait_until_ready()
        bearer = {"Authorization": f"Bearer {key}"}
        for path in ("/v1/models", "/v1/server/info", "/v1/kv", "/metrics", "/nowhere"):
            status, text = server.get(path)
            assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
        for path in ("/v1/models", "/v1/server/info", "/v1/kv", "/metrics"):
            status, text = server.get(path, **bearer)
            assert status == 200
            assert key not in text
        assert server.get("/nowhere", **bearer)[0] == 404
        assert server.post(IMAGES, image_body())[0] == 401
        assert server.get("/openapi.json")[0] == 200
        assert server.stop() == 0
        assert key not in server.log
