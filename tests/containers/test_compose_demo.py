"""`docker compose up` as a user types it: pictures, the page, a killed server, an orderly stop."""

from __future__ import annotations

import io
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import openai
import pytest
from browser_page import open_browser, open_page, open_tab, wait_for_state
from container_engine import SCRIPT, Compose, Engine, run
from PIL import Image

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

FIRST_IMAGE_LIMIT_S = 360
SERVICES = ("server", "dense", "ui")
SEED = 1234


@dataclass(frozen=True)
class Demo:
    """The demo that runs; `first` is the picture that the paged server drew first."""

    compose: Compose
    first: bytes

    def container(self, service: str) -> str:
        return self.compose.container(service)


@pytest.fixture(scope="module")
def demo(
    engine: Engine, images: dict[str, str], compose: Compose, report: dict[str, float]
) -> Iterator[Demo]:
    del images  # built: the caches are warm
    compose("down", "--volumes", "--remove-orphans")
    start_s = time.monotonic()
    if engine.is_ours:
        run(str(SCRIPT), "down")
        run(str(SCRIPT), "up")
    compose("up", "--detach", "--build", "--wait", "--wait-timeout", "300")
    first = draw(compose)
    report["engine_start_to_first_image_s"] = time.monotonic() - start_s
    yield Demo(compose, first)
    compose("down", "--volumes")


def client(compose: Compose, port: str = "PORT") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{compose.url(port)}/v1", api_key="none", max_retries=0)


def draw(compose: Compose, port: str = "PORT", *, num_steps: int = 8) -> bytes:
    """A picture by the stock client, through the published port."""
    with client(compose, port) as asking:
        answer = asking.images.generate(
            model="hunyuan_image3_tiny",
            prompt="A red ceramic vase on a wooden table",
            size="256x256",
            extra_body={"seed": SEED, "num_inference_steps": num_steps},
        )
    assert answer.data is not None
    return b64decode(answer.data[0].b64_json or "")


def pixels(picture: bytes) -> bytes:
    return Image.open(io.BytesIO(picture)).convert("RGB").tobytes()


def test_first_image_in_time(demo: Demo, report: dict[str, float]) -> None:
    assert Image.open(io.BytesIO(demo.first)).size == (256, 256)
    assert report["engine_start_to_first_image_s"] <= FIRST_IMAGE_LIMIT_S


def test_every_service_is_healthy_and_guarded(demo: Demo, engine: Engine) -> None:
    for service in SERVICES:
        state = engine.inspect(demo.container(service))
        assert state["State"]["Health"]["Status"] == "healthy", service
        assert state["HostConfig"]["ReadonlyRootfs"], service
        assert state["HostConfig"]["LogConfig"] == {
            "Type": "json-file",
            "Config": {"max-file": "3", "max-size": "10m"},
        }
        status = engine.docker("exec", demo.container(service), "cat", "/proc/1/status")
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert facts["Uid"].split() == ["1000"] * 4, service
        assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0, service
        assert facts["NoNewPrivs"] == "1", service
        touched = engine.docker(
            *("exec", "--user", "0", demo.container(service), "touch", "/opt/x"), check=False
        )
        assert "Read-only file system" in touched, service


def test_nothing_is_published_beyond_this_machine(demo: Demo, engine: Engine) -> None:
    for service in SERVICES:
        ports = engine.inspect(demo.container(service))["NetworkSettings"]["Ports"]
        bound = [binding["HostIp"] for bindings in ports.values() for binding in bindings or ()]
        assert bound == ["127.0.0.1"], service


def test_paged_and_dense_draw_the_same(demo: Demo) -> None:
    modes = {}
    for port in ("PORT", "DENSE_PORT"):
        with urllib.request.urlopen(f"{demo.compose.url(port)}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        [modes[port]] = [line for line in lines if line.startswith("kit_kv_pool_pages ")]
    assert modes["DENSE_PORT"] == "kit_kv_pool_pages 0.0" != modes["PORT"]
    assert pixels(draw(demo.compose, "DENSE_PORT")) == pixels(demo.first)


def test_the_page_draws_in_a_browser(demo: Demo) -> None:
    with open_browser() as browser, open_page(browser, demo.compose.url("UI_PORT")) as page:
        for name in ("first server", "second server"):
            wait_for_state(page, "ready", name)
        page.locator("#create-prompt textarea").fill("A red ceramic vase on a wooden table")
        page.locator("#create-steps input").first.fill("4")
        page.click("#create-button")
        page.wait_for_selector(".kit-card")
        # What a user clicks or copies must not name what only compose knows.
        open_tab(page, "Deployment")
        for port in ("PORT", "DENSE_PORT"):
            page.wait_for_selector(f'a[href="{demo.compose.url(port, "localhost")}/docs"]')


def test_a_killed_server_comes_back(demo: Demo, engine: Engine, images: dict[str, str]) -> None:
    name = demo.container("server")
    before = engine.inspect(name)
    # As the kernel would kill it: `docker kill` counts as a stop, after which nothing restarts.
    engine.docker(
        *("run", "--rm", "--pid", "host", "--privileged", "--user", "0", "--entrypoint", "python"),
        *(images["server"], "-c", f"import os; os.kill({before['State']['Pid']}, 9)"),
    )
    end = time.monotonic() + 60
    while engine.inspect(name)["RestartCount"] == before["RestartCount"]:
        assert time.monotonic() < end, "it did not start again"
        time.sleep(0.2)
    engine.wait_for(name, "healthy", 180)
    after = engine.inspect(name)
    assert after["State"]["Pid"] != before["State"]["Pid"]
    assert pixels(draw(demo.compose)) == pixels(demo.first)


def test_a_stop_ends_the_running_request_with_its_picture(demo: Demo, engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(draw, demo.compose, num_steps=100)
        wait_for_metric(demo.compose, "kit_running_requests 1.0")
        waiting = threads.submit(draw, demo.compose)
        wait_for_metric(demo.compose, "kit_queue_requests 1.0")
        demo.compose("stop", "server")
        assert Image.open(io.BytesIO(running.result())).size == (256, 256)
        with pytest.raises(openai.InternalServerError) as refused:
            waiting.result()
    assert refused.value.status_code == 503
    state = engine.inspect(demo.container("server"))["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)


def wait_for_metric(compose: Compose, line: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{compose.url('PORT')}/metrics") as answer:
            if line in answer.read().decode().splitlines():
                return
        time.sleep(0.02)
    pytest.fail(f"no moment with {line}")


def test_up_again_gives_the_same_picture(demo: Demo, report: dict[str, float]) -> None:
    demo.compose("down")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"{demo.compose.url('PORT')}/health")
    start_s = time.monotonic()
    demo.compose("up", "--detach", "--wait", "--wait-timeout", "300", "server")
    report["server_up_to_healthy_s"] = time.monotonic() - start_s
    assert pixels(draw(demo.compose)) == pixels(demo.first)
