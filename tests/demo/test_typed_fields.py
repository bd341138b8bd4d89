"""What the user types stays: fields open once the server's defaults are in them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from browser_page import open_browser, open_page, open_tab, wait_for_state
from playwright.sync_api import Page, expect

from bench.demo_process import DemoProcess
from bench.server_process import ServerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FORMS = ("create", "compare")
FIELDS = ("size", "steps", "guidance")


def expect_values(page: Page, **values: str) -> None:
    """In both forms; a form's tab need not be open."""
    for form in FORMS:
        for field, value in values.items():
            expect(page.locator(f"#{form}-{field} input")).to_have_value(value)


def test_fields_open_with_the_defaults_and_keep_what_is_typed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    stage = {"default_sampling_params": {"num_inference_steps": 30, "guidance_scale": 2.5}}
    changed = ("--stage-overrides", json.dumps({"0": stage}))
    with (
        open_browser() as browser,
        DemoProcess("--server", url, "--compare-server", url) as demo,
        open_page(browser, demo.url) as page,
    ):
        wait_for_state(page, "down")
        for form in FORMS:
            open_tab(page, form.capitalize())
            for field in FIELDS:
                expect(page.locator(f"#{form}-{field} input")).to_be_disabled()
        with ServerProcess(tmp_path / "first", "--port", port) as server:
            wait_for_state(page, "ready")
            expect_values(page, steps="20", guidance="3")
            for form in FORMS:
                open_tab(page, form.capitalize())
                page.locator(f"#{form}-steps input").fill("3")
            server.process.kill()
            wait_for_state(page, "down")
        with ServerProcess(tmp_path / "second", "--port", port, *changed):
            wait_for_state(page, "ready")
            expect_values(page, steps="3", guidance="2.5")


def test_the_seed_is_closed_while_each_picture_draws_one(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "log") as server,
        open_browser() as browser,
        DemoProcess("--server", server.url) as demo,
        open_page(browser, demo.url) as page,
    ):
        seed, tick = page.locator("#create-seed textarea"), page.locator("#create-new-seed input")
        expect(seed).to_be_disabled()
        tick.uncheck()
        seed.fill("8")
        tick.check()
        expect(seed).to_be_disabled()
        expect(seed).to_have_value("8")
