"""The demo's page in a real browser: opens it, and watches what it asks for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from bench import browser
from bench.demo_process import DemoProcess
from bench.server_process import PATIENCE_S

PATIENCE_MS = PATIENCE_S * 1000

_UNNAMED = """() => Array.from(document.querySelectorAll("input, textarea, button, select"))
  .filter((e) => e.offsetParent !== null)
  .filter((e) => !(e.labels?.length && e.labels[0].innerText.trim()) && !e.textContent?.trim()
    && !e.getAttribute("aria-label")?.trim() && !e.getAttribute("aria-labelledby"))
  .map((e) => e.outerHTML.slice(0, 200))"""
# Gradio's own containers cut off what is too wide, so the document's width does not tell.
_CUT_OFF = """() => Array.from(document.querySelectorAll(".gradio-container *"))
  .filter((e) => e.checkVisibility() && !e.closest(".kit-scroll, svg"))
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map((e) => e.outerHTML.slice(0, 200))"""
_NO_TEXT = """() => Array.from(
  document.querySelectorAll("img:not([alt]), svg[role=img]:not([aria-label])"),
  (e) => e.outerHTML.slice(0, 200))"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the browser, patient; where there is none the test ends in an error, not skipped."""
    expect.set_options(timeout=PATIENCE_MS)
    with browser.open_browser() as started:
        yield started


@dataclass
class Seen:
    """What one page asked for and complained about."""

    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def open_page(
    started: Browser, url: str, *, width: int = 1280, dark: bool = False
) -> Iterator[Page]:
    """Open the demo's page; at the end it must have asked no other host, nor complained."""
    context = started.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        accept_downloads=True,
    )
    context.set_default_timeout(PATIENCE_MS)
    page, seen, own = context.new_page(), Seen(), urlsplit(url).netloc

    def on_request(asked: str) -> None:
        if urlsplit(asked).scheme not in ("data", "blob") and urlsplit(asked).netloc != own:
            seen.foreign.append(asked)

    page.on("request", lambda request: on_request(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: seen.complaints.append(message.text) if message.type == "error" else None,
    )
    _load(page, url, seen)
    yield page
    context.close()
    assert seen == Seen()


def _load(page: Page, url: str, seen: Seen) -> None:
    """Open the page; anew where the machine's network interfaces changed meanwhile.

    Chromium then breaks off even what goes to this machine, and no switch stops it: containers that
    start or end beside the tests are enough.
    """
    shown = page.locator("#create-button")
    for _ in range(5):
        seen.complaints.clear()
        page.goto(url)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if any("ERR_NETWORK_CHANGED" in text for text in seen.complaints):
                break
            if shown.is_visible():
                return
            page.wait_for_timeout(100)
    pytest.fail(f"the page does not show: {seen.complaints}")


def maps_torch(demo: DemoProcess) -> bool:
    """Whether the process has loaded torch's library."""
    return "libtorch" in Path(f"/proc/{demo.process.pid}/maps").read_text()


def state_of(page: Page, server: str = "first server") -> str:
    """The state that the page shows of a server."""
    return page.get_attribute(f'[data-server="{server}"]', "data-state") or ""


def wait_for_state(page: Page, state: str, server: str = "first server") -> None:
    page.wait_for_selector(f'[data-server="{server}"][data-state="{state}"]')


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def wait_for_steps(page: Page, num_steps: int) -> None:
    """Wait until a request of so many steps is on its way; which step is seen is chance."""
    page.get_by_text(re.compile(rf"[Ss]tep \d+ of {num_steps}")).wait_for()


def fill(page: Page, form: str, **fields: str) -> None:
    """Type into fields of a form."""
    for name, value in fields.items():
        page.locator(f"#{form}-{name}").locator("textarea, input").first.fill(value)


def lock_seed(page: Page, form: str, seed: str) -> None:
    """Name the seed instead of having one drawn."""
    page.locator(f"#{form}-new-seed input").uncheck()
    fill(page, form, seed=seed)


def check_layout(page: Page, name: str) -> None:
    """Nothing that is shown is wider than a screen, and nothing is nameless."""
    for width in (360, 768, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(_CUT_OFF) == [], f"{name} at {width} pixels"
    assert page.evaluate(_UNNAMED) == [], name
    assert page.evaluate(_NO_TEXT) == [], name
