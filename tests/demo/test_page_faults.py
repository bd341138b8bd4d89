"""The page beside servers that die, are full or start, and `kit demo` with servers of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from browser_page import (
    PATIENCE_MS,
    open_browser,
    open_page,
    open_tab,
    wait_for_state,
    wait_for_steps,
)
from playwright.sync_api import Browser, expect

from bench.demo_process import DemoProcess
from bench.server_process import ServerProcess, image_body

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FIRST_PAGE_LIMIT_S = 15.0
PAGED = ("--deploy-config", "hunyuan_image3_paged.yaml", "--kv-cache-memory-bytes", "33554432")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


def test_a_server_that_dies_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "first", *PAGED) as server:
        server.wait_until_ready()
        port = server.url.rsplit(":", 1)[1]
        # The browser itself reports nothing here: it talks to the page's own server only.
        with DemoProcess("--server", server.url) as demo, open_page(browser, demo.url) as page:
            expect(page.locator("#create-steps input")).to_have_value("20")
            assert page.get_by_role("tab", name="Compare").count() == 0
            page.locator("#create-steps input").fill("1000")
            page.click("#create-button")
            wait_for_steps(page, 1000)
            server.process.kill()
            said = page.locator("#create-said [role=alert]")
            expect(said).to_contain_text("The server went away")
            wait_for_state(page, "down")
            expect(page.locator("#kit-states")).to_contain_text("Nothing answers at")
            open_tab(page, "Pages")
            expect(page.locator("#page-map")).to_contain_text("shows no pages now")
            with ServerProcess(tmp_path / "second", *PAGED, "--port", port) as again:
                wait_for_state(page, "starting")
                again.wait_until_ready()
                wait_for_state(page, "ready")
                page.wait_for_selector(".kit-map")
                open_tab(page, "Create")
                page.locator("#create-steps input").fill("1")
                page.click("#create-button")
                page.wait_for_selector(".kit-card")
                assert said.count() == 0


def test_a_full_server_says_when_to_come_back(browser: Browser, tmp_path: Path) -> None:
    stage = json.dumps({"0": {"max_queued_requests": 1}})
    with ServerProcess(tmp_path / "log", *PAGED, "--stage-overrides", stage) as server:
        server.wait_until_ready()
        with DemoProcess("--server", server.url) as demo, open_page(browser, demo.url) as page:
            wait_for_state(page, "ready")
            jobs = []
            for _ in range(2):
                status, text = server.post("/v1/jobs", image_body(num_inference_steps=1000))
                assert status == 202, text
                jobs.append(json.loads(text)["id"])
                server.wait_for(lambda: server.load()["kit_running_requests"] == 1)
            wait_for_state(page, "full")
            page.click("#create-button")
            alert = page.locator("#create-said [role=alert]")
            expect(alert).to_have_text(
                "The server is full: its queue takes no more requests. Try again in 1 s."
            )
            for job in jobs:
                page.request.delete(f"{server.url}/v1/jobs/{job}")
            wait_for_state(page, "ready")
            page.locator("#create-steps input").fill("1")
            page.click("#create-button")
            page.wait_for_selector(".kit-card")
            assert alert.count() == 0


def test_a_page_opens_while_its_servers_start_and_takes_them_along(browser: Browser) -> None:
    started = time.monotonic()
    with DemoProcess("--server-port", "0") as demo:
        assert time.monotonic() - started <= FIRST_PAGE_LIMIT_S, f"load {os.getloadavg()}"
        children = psutil.Process(demo.process.pid).children(recursive=True)
        assert len(children) == 2
        with open_page(browser, demo.url) as page:
            wait_for_state(page, "ready", "first server")
            wait_for_state(page, "ready", "second server")
            assert page.get_by_role("tab", name="Compare").count() == 1
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(PATIENCE_MS / 1000) == 0
        assert left_of(children) == []
        assert [line for line in demo.lines if "Traceback" in line or "ERROR" in line] == []


def test_a_server_of_the_demo_that_dies_is_named_and_stays_away(browser: Browser) -> None:
    with DemoProcess("--server-port", "0") as demo:
        paged, dense = (
            child
            for mode in (True, False)
            for child in psutil.Process(demo.process.pid).children()
            if ("hunyuan_image3_paged.yaml" in child.cmdline()) is mode
        )
        with open_page(browser, demo.url) as page:
            wait_for_state(page, "ready", "first server")
            wait_for_state(page, "ready", "second server")
            open_tab(page, "Compare")
            page.locator("#compare-steps input").fill("1000")
            page.click("#compare-button")
            wait_for_steps(page, 1000)  # the second server draws first
            dense.kill()
            said = page.locator("#compare-said [role=alert]")
            expect(said).to_contain_text("The second server (dense_legacy) went away")
            wait_for_state(page, "down", "second server")
            advice = page.locator('[data-server="second server"] .kit-advice')
            expect(advice).to_contain_text("kit demo does not start it again")
            expect(page.locator("#compare-button")).to_be_disabled()
            expect(page.locator("#create-button")).to_be_enabled()
            assert "dense | ended with code -9; the demo does not start it again" in demo.log
            paged.kill()
            wait_for_state(page, "down", "first server")
            expect(page.locator("#create-button")).to_be_disabled()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_demo_that_is_stopped_while_it_starts_leaves_nothing_behind(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.cli", "demo", "--port", "0", "--server-port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    own = psutil.Process(process.pid)
    deadline = time.monotonic() + PATIENCE_MS / 1000
    # At once: the first server is not even in the list of those to stop.
    while not (children := own.children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait(PATIENCE_MS / 1000) == 130
    assert len(children) > 0
    assert left_of(children) == []


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=1)[1]
