"""Take the screenshots of docs/demo: every tab at three widths, in light and dark.

usage: demo_screenshots.py FOLDER

Starts servers and the page itself; needs the extra `test` and a chromium on the path.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser_page import DemoProcess, open_browser, open_page, open_tab, wait_for_state  # noqa: E402

PROMPT = "a blue cup to the left of a green apple"
SHOTS = ((1440, False), (1440, True), (768, False), (360, True))
NUM_COLORS = 96
MAX_HEIGHT = 1400


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    with DemoProcess("--server-port", "0") as demo, open_browser() as browser:
        for width, dark in SHOTS:
            name = f"{width}-{'dark' if dark else 'light'}"
            with open_page(browser, demo.url, width=width, dark=dark) as page:
                wait_for_state(page, "ready", "first server")
                wait_for_state(page, "ready", "second server")
                for tab, image in shots(page):
                    path = folder / f"{tab}-{name}.png"
                    save(image, path)
                    print(f"wrote {path}, {path.stat().st_size} bytes")
        demo.process.terminate()
        demo.process.wait()
    return 0


def shots(page: Page) -> list[tuple[str, bytes]]:
    """Use every tab once and take its picture."""
    taken = []
    page.wait_for_timeout(2500)
    page.locator("#create-new-seed input").uncheck()
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    page.locator("#create-prompt textarea").fill(PROMPT)
    page.click("#create-button")
    page.wait_for_selector('.kit-card img[alt^="a blue cup"]')
    page.wait_for_timeout(500)
    taken.append(("create", page.screenshot(full_page=True)))
    page.locator("#create-steps input").fill("40")
    page.click("#create-button")
    open_tab(page, "Pages")
    page.wait_for_selector(".kit-bars rect:nth-of-type(12)")
    taken.append(("pages", page.screenshot(full_page=True)))
    page.wait_for_selector("#holders .kit-empty")
    open_tab(page, "Compare")
    page.click("#compare-button")
    page.wait_for_selector(".kit-verdict")
    page.wait_for_timeout(500)
    taken.append(("compare", page.screenshot(full_page=True)))
    open_tab(page, "Deployment")
    page.wait_for_selector(".kit-ask")
    page.wait_for_timeout(500)
    taken.append(("deployment", page.screenshot(full_page=True)))
    return taken


def save(data: bytes, path: Path) -> None:
    """Write a small PNG: few colours, the top of a long page."""
    with Image.open(io.BytesIO(data)) as image:
        top = image.convert("RGB").crop((0, 0, image.width, min(image.height, MAX_HEIGHT)))
        top.quantize(NUM_COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
