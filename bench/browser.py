"""A headless Chromium that asks no host of its maker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kit.errors import UnsupportedError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Without them the browser itself looks up hosts of its maker.
_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str:
    """Return the path of a Chromium; raises UnsupportedError with what to install."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise UnsupportedError(
            f"the page is driven in Chromium, and none of {', '.join(NAMES)} is on the path; "
            "install one (Debian: apt-get install chromium)"
        )
    if find_spec("playwright") is None:
        raise UnsupportedError(
            "the browser is driven by playwright, which is not installed; install the extra `test`"
        )
    return path


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the browser; raises UnsupportedError where it is missing."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    sandbox = () if os.geteuid() else ("--no-sandbox",)  # root has none
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*_QUIET, *sandbox])
        yield browser
        browser.close()
