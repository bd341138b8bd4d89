"""The demo's page in a real browser: finds Chromium, and watches what a page asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 60_000
_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Without them the browser itself looks up hosts of its maker.
_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a headless Chromium; skips where there is none, but not in CI."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        message = f"no browser here, looked for {', '.join(_NAMES)}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    sandbox = () if os.geteuid() else ("--no-sandbox",)  # root has none
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MS)
        browser = playwright.chromium.launch(executable_path=path, args=[*_QUIET, *sandbox])
        yield browser
        browser.close()


@dataclass
class Seen:
    """What one page asked for and complained about."""

    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def open_page(
    browser: Browser, url: str, *, width: int = 1280, dark: bool = False
) -> Iterator[Page]:
    """Open the demo's page; at the end it must have asked no other host, nor complained."""
    context = browser.new_context(
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
    page.goto(url)
    page.wait_for_selector("#create-button")
    yield page
    context.close()
    assert seen == Seen()


class DemoProcess:
    """A `kit demo` process; leaving its context kills what is left of it."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kit.cli", "demo", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.lines: list[str] = []
        self._urls: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self._urls.get(timeout=PATIENCE_MS / 1000)
        assert self.url, "\n".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                if found := re.match(r"the page: (\S+)", line):
                    self._urls.put(found[1])
        self._urls.put("")

    def maps_torch(self) -> bool:
        """Whether the process has loaded torch's library."""
        return "libtorch" in Path(f"/proc/{self.process.pid}/maps").read_text()

    def __enter__(self) -> DemoProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


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
