"""Every tab of the page in headless Chromium, against live servers on the shipped checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import (
    DemoProcess,
    open_browser,
    open_page,
    open_tab,
    wait_for_state,
    wait_for_steps,
)
from playwright.sync_api import Browser, Page, expect

from bench.server_process import ServerProcess
from kit.demo.children import DENSE, PAGED

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FIRST_PICTURE_LIMIT_S = 8.0
TABS = ("Create", "Compare", "Pages", "Deployment")


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("paged") / "log", *PAGED) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("dense") / "log", *DENSE) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def demo(paged: ServerProcess, dense: ServerProcess) -> Iterator[DemoProcess]:
    with DemoProcess("--server", paged.url, "--compare-server", dense.url) as process:
        yield process
        assert not process.maps_torch()
        assert [line for line in process.lines if "Traceback" in line] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, demo: DemoProcess) -> Iterator[Page]:
    with open_page(browser, demo.url) as opened:
        wait_for_state(opened, "ready")
        # The server's defaults arrive with its first answer.
        expect(opened.locator("#create-steps input")).to_have_value("20")
        yield opened


def fill(page: Page, form: str, **fields: str) -> None:
    for name, value in fields.items():
        page.locator(f"#{form}-{name}").locator("textarea, input").first.fill(value)


def lock_seed(page: Page, form: str, seed: str) -> None:
    page.locator(f"#{form}-new-seed input").uncheck()
    fill(page, form, seed=seed)


def test_create_draws_a_picture_that_replays(page: Page, tmp_path: Path) -> None:
    lock_seed(page, "create", "41")
    page.click("#create-button")
    page.wait_for_selector("#create-progress progress")
    page.wait_for_selector("#create-progress .kit-preview img")  # a partial picture
    page.wait_for_selector(".kit-card img")
    card = page.locator(".kit-card")
    expect(card.locator("dl")).to_contain_text("41")
    expect(page.locator("#create-said")).to_contain_text("1 picture in")
    expect(page.locator("#create-progress progress")).to_have_count(0)
    with page.expect_download() as waiting:
        card.get_by_role("link", name="Download PNG").click()
    file = tmp_path / waiting.value.suggested_filename
    assert file.name == "kit-seed-41.png"
    waiting.value.save_as(file)
    card.locator("summary").click()
    record = json.loads(card.locator("pre").inner_text())
    assert record["record"]["request"]["sampling"]["seed"] == 41
    done = subprocess.run(
        [sys.executable, "-m", "kit.cli", "replay", file.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_picture_comes_soon_after_the_click(page: Page) -> None:
    """With the server's own 20 steps; other programs may disturb two of three tries."""
    times = []
    for number in range(1, 4):
        started = time.monotonic()
        page.click("#create-button")
        expect(page.locator(".kit-card")).to_have_count(number)
        times.append(time.monotonic() - started)
        if times[-1] <= FIRST_PICTURE_LIMIT_S:
            return
    pytest.fail(f"seconds from click to picture: {times}, load average {os.getloadavg()}")


def test_several_pictures_have_seeds_that_follow_and_the_newest_comes_first(page: Page) -> None:
    lock_seed(page, "create", "9223372036854775806")  # a browser's numbers could not hold it
    fill(page, "create", steps="3", prompt="a <b>lighthouse</b> at night")
    page.locator("#create-count input[type=number]").fill("2")
    page.locator("#create-count input[type=number]").press("Tab")
    page.click("#create-button")
    expect(page.locator(".kit-card")).to_have_count(2)
    seeds = [page.locator(".kit-card").nth(i).get_attribute("data-seed") for i in (0, 1)]
    assert seeds == ["9223372036854775807", "9223372036854775806"]
    assert page.locator(".kit-prompt").first.inner_text() == "a <b>lighthouse</b> at night"
    page.locator("#create-new-seed input").check()
    page.locator("#create-count input[type=number]").fill("1")
    page.locator("#create-count input[type=number]").press("Tab")
    page.click("#create-button")
    expect(page.locator(".kit-card")).to_have_count(3)
    assert page.locator(".kit-card").first.get_attribute("data-seed") not in seeds


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("steps", "0", "Steps: got 0, expected an integer from 1 to 1000"),
        ("steps", "2.5", "Steps: "),
        ("guidance", "101", "Guidance: "),
        ("seed", "x", "Seed: 'x' is no whole number"),
        ("seed", "-1", "Seed: "),
        ("prompt", "  ", "Prompt: say what the picture should show."),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(
    page: Page, field: str, value: str, text: str
) -> None:
    lock_seed(page, "create", "1")
    fill(page, "create", **{field: value})
    page.click("#create-button")
    expect(page.locator(f"#create-{field}-error [role=alert]")).to_contain_text(text)
    assert page.get_by_role("alert").count() == 1
    place = page.locator(f"#create-{field}-error").bounding_box()
    its_field = page.locator(f"#create-{field}").bounding_box()
    assert place is not None
    assert its_field is not None
    assert 0 <= place["y"] - its_field["y"] - its_field["height"] < 60
    # The next request that is right clears it.
    fill(page, "create", prompt="a cat", steps="1", guidance="1", seed="1")
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    assert page.get_by_role("alert").count() == 0


def test_cancel_cancels_on_the_server(page: Page, paged: ServerProcess) -> None:
    fill(page, "create", steps="1000")
    page.click("#create-button")
    wait_for_steps(page, 1000)
    assert paged.load()["kit_running_requests"] == 1
    page.click("#cancel-button")
    expect(page.locator("#create-said [role=alert]")).to_contain_text("Cancelled.")
    paged.wait_until_idle()
    assert page.locator(".kit-card").count() == 0
    expect(page.locator("#cancel-button")).to_be_disabled()
    fill(page, "create", steps="1")
    page.click("#create-button")
    page.wait_for_selector(".kit-card")


def test_closing_the_browser_page_cancels_on_the_server(
    browser: Browser, demo: DemoProcess, paged: ServerProcess
) -> None:
    with open_page(browser, demo.url) as page:
        expect(page.locator("#create-steps input")).to_have_value("20")
        fill(page, "create", steps="1000")
        page.click("#create-button")
        wait_for_steps(page, 1000)
    paged.wait_until_idle()


def test_compare_finds_both_modes_identical(page: Page) -> None:
    open_tab(page, "Compare")
    fill(page, "compare", steps="6", seed="5")
    page.click("#compare-button")
    verdict = page.locator(".kit-verdict")
    expect(verdict).to_have_text("Identical: all 65,536 pixels are equal.")
    table = page.locator("#comparison .kit-table").inner_text()
    for part in ("dense_legacy", "paged_scheduler", "first step", "peak memory", "MiB"):
        assert part in table
    assert page.locator("#comparison .kit-card").count() == 2
    assert page.locator("#comparison polyline").count() == 2


class KVLog:
    """Every state of the pool that the server itself reports, by version."""

    def __init__(self, url: str) -> None:
        self.seen: dict[int, Any] = {}
        self._response = urllib.request.urlopen(f"{url}/v1/kv?stream=true", timeout=60)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._response:
            if line.startswith(b"data: "):
                answer = json.loads(line[len(b"data: ") :])
                self.seen[answer["version"]] = answer


_READ_MAP = """() => {
  const map = document.querySelector(".kit-map");
  return map && [Number(map.dataset.version), Array.from(map.querySelectorAll("[data-page]"),
    (square) => [Number(square.dataset.page), square.dataset.kind])];
}"""


def test_the_page_map_is_the_pool_while_a_request_runs(page: Page, paged: ServerProcess) -> None:
    log = KVLog(paged.url)
    fill(page, "create", steps="60", prompt="a large red vase on a wooden table, " * 2)
    page.click("#create-button")
    open_tab(page, "Pages")
    page.wait_for_selector(".kit-holder")
    matched: dict[int, tuple[int, ...]] = {}
    deadline = time.monotonic() + 60
    while len(matched) < 3 and time.monotonic() < deadline:
        version, squares = page.evaluate(_READ_MAP)
        answer = log.seen.get(version)
        if answer and answer["requests"]:
            kinds = dict.fromkeys(range(answer["pages"]["total"]), "free")
            for request in answer["requests"]:
                for row in request["rows"]:
                    kinds |= {held["page"]: held["kind"] for held in row}
            assert dict(squares) == kinds
            assert {"prefix", "target", "free"} == set(kinds.values())
            matched[version] = tuple(kinds)
        page.wait_for_timeout(150)
    assert len(matched) == 3, "the map showed too few states of the running request"
    page.get_by_text("which is written once").wait_for()
    assert page.locator(".kit-row").count() == 2
    page.wait_for_selector("#holders .kit-empty")  # it has ended: every page is free again
    version, squares = page.evaluate(_READ_MAP)
    assert {kind for _, kind in squares} == {"free"}
    expect(page.locator("#fits")).to_contain_text("256")


def test_deployment_says_what_runs_and_its_code_draws_the_same(
    page: Page, tmp_path: Path, paged: ServerProcess
) -> None:
    lock_seed(page, "create", "12")
    fill(page, "create", steps="2", prompt="a 'quoted' vase")
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    source = page.locator(".kit-card img").get_attribute("src")
    shown = page.request.get(f"{page.url}{source}").body()
    open_tab(page, "Deployment")
    text = page.locator("#deployment")
    for part in ("paged_scheduler", "dense_legacy", "FLASH_ATTN", "cpu_reference 1", "292 pages"):
        expect(text).to_contain_text(part)
    expect(text).to_contain_text("The last request without this page")
    program = page.locator("#deployment .kit-code pre").nth(1).inner_text()
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert (tmp_path / "picture-12.png").read_bytes() == shown
    line = page.locator("#deployment .kit-code pre").first.inner_text()
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    assert (tmp_path / "picture.png").read_bytes() == shown
    for name, start in (("Metrics", "# HELP"), ("API document", '{"openapi"')):
        address = page.get_by_role("link", name=name).first.get_attribute("href")
        assert page.request.get(f"{page.url}{address}").text().startswith(start)
    page.locator("summary", has_text="Not supported").first.click()
    expect(text).to_contain_text("the model takes no negative prompt")
    page.locator("#deployment [data-copy]").first.click()
    expect(page.locator("#deployment [data-copy]").first).not_to_have_text("Copy")
    assert paged.process.poll() is None


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_screen(browser: Browser, demo: DemoProcess, width: int) -> None:
    with open_page(browser, demo.url, width=width, dark=width == 768) as page:
        wait_for_state(page, "ready")
        fill(page, "create", steps="2")
        page.click("#create-button")
        page.wait_for_selector(".kit-card")
        open_tab(page, "Compare")
        fill(page, "compare", steps="2")
        page.click("#compare-button")
        page.wait_for_selector(".kit-verdict")
        for name in TABS:
            open_tab(page, name)
            page.wait_for_timeout(1500)
            inner = page.evaluate("document.documentElement.scrollWidth")
            assert inner <= width, f"{name} is {inner} pixels wide"


def test_the_keyboard_reaches_and_starts_everything(page: Page) -> None:
    page.locator("#create-prompt textarea").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("a blue cup")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "create-button":
            break
    else:
        pytest.fail("Tab does not reach Create")
    page.keyboard.press("Enter")
    page.wait_for_selector(".kit-card")
    assert page.locator(".kit-prompt").inner_text() == "a blue cup"
    page.get_by_role("tab", name="Create").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Pages")).to_have_attribute("aria-selected", "true")


_UNNAMED = """() => Array.from(document.querySelectorAll("input, textarea, button, select"))
  .filter((e) => e.offsetParent !== null)
  .filter((e) => !(e.labels?.length && e.labels[0].innerText.trim()) && !e.textContent?.trim()
    && !e.getAttribute("aria-label")?.trim() && !e.getAttribute("aria-labelledby"))
  .map((e) => e.outerHTML.slice(0, 200))"""


def test_every_control_has_a_name_and_every_picture_a_text(page: Page) -> None:
    fill(page, "create", steps="1")
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    for name in TABS:
        open_tab(page, name)
        page.wait_for_timeout(1500)
        assert page.evaluate(_UNNAMED) == [], name
    nameless = "() => document.querySelectorAll('img:not([alt]), svg[role=img]:not([aria-label])')"
    assert page.evaluate(f"({nameless})().length") == 0
    assert page.locator("#kit-states").get_attribute("role") == "status"
    assert page.evaluate("document.documentElement.lang") == "en"
