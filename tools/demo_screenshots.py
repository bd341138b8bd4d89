"""Take the screenshots of docs/demo: every tab at three widths, in light and dark.

usage: demo_screenshots.py FOLDER [NAME ...]

NAME is for example create-360-dark; without one all are written. Starts servers and the page
itself; needs the extra `test` and a Chromium on the path.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser_page import open_browser, open_page, open_tab, wait_for_state  # noqa: E402

from bench.demo_process import DemoProcess  # noqa: E402
from kit.demo.examples import EDIT_PROMPT, PROMPTS  # noqa: E402

WIDTHS = (1440, 768, 360)
NUM_COLORS = 255
MAX_HEIGHT = 1400
SETTLE_MS = 600


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    folder, names = Path(arguments[0]), arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    with DemoProcess("--server-port", "0") as demo, open_browser() as browser:
        for scheme in ("light", "dark"):
            with open_page(browser, demo.url, dark=scheme == "dark") as page:
                for tab in use_tabs(page):
                    for width in WIDTHS:
                        name = f"{tab}-{width}-{scheme}"
                        if not names or name in names:
                            path = folder / f"{name}.png"
                            save(take(page, width), path)
                            print(f"wrote {path}, {path.stat().st_size} bytes")
        demo.process.terminate()
        demo.process.wait()
    return 0


def use_tabs(page: Page) -> Iterator[str]:
    """Use every tab; yield its name when there is something to see."""
    wait_for_state(page, "ready", "first server")
    wait_for_state(page, "ready", "second server")
    page.wait_for_timeout(2500)  # the server's defaults arrive
    page.locator("#create-new-seed input").uncheck()
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    page.click("[data-reuse]")
    page.wait_for_selector("#create-images img")
    page.locator("#create-prompt textarea").fill(EDIT_PROMPT)
    page.click("#create-button")
    page.wait_for_selector(f'.kit-card img[alt^="{EDIT_PROMPT}"]')
    wait_for_state(page, "ready")
    yield "create"
    page.get_by_role("button", name=PROMPTS[-1]).click()
    page.wait_for_selector("#create-images img", state="detached")
    page.locator("#create-steps input").fill("80")
    page.click("#create-button")
    open_tab(page, "Pages")
    page.wait_for_selector(".kit-bars g:nth-of-type(12)")
    yield "pages"
    open_tab(page, "Create")
    page.click("#cancel-button")
    wait_for_state(page, "ready")
    open_tab(page, "Compare")
    page.click("#compare-button")
    page.wait_for_selector(".kit-verdict")
    wait_for_state(page, "ready")
    yield "compare"
    open_tab(page, "Deployment")
    page.wait_for_selector(".kit-ask")
    yield "deployment"


def take(page: Page, width: int) -> bytes:
    page.set_viewport_size({"width": width, "height": 900})
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLE_MS)
    return page.screenshot(full_page=True)


def save(data: bytes, path: Path) -> None:
    """Write a small PNG: few colours, the top of a long page."""
    with Image.open(io.BytesIO(data)) as image:
        top = image.convert("RGB").crop((0, 0, image.width, min(image.height, MAX_HEIGHT)))
        # Median cut would lose the colour of small things, such as the dot of a server's state.
        few = top.quantize(
            NUM_COLORS, Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE
        )
        few.save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
