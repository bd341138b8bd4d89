"""Every tab of the page in headless Chromium, against live servers on the shipped checkpoint."""

from __future__ import annotations

import json
import os
import re
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
    PATIENCE_MS,
    check_layout,
    fill,
    lock_seed,
    maps_torch,
    open_browser,
    open_page,
    open_tab,
    wait_for_state,
    wait_for_steps,
)
from playwright.sync_api import Browser, Page, expect

from bench.demo_process import DemoProcess
from bench.server_process import ServerProcess, fetch, image_body
from kit.demo.children import DENSE, PAGED

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TABS = {
    "Create": ".kit-card",
    "Compare": ".kit-verdict",
    "Pages": "#fits table",
    "Deployment": ".kit-ask",
}
"""Each tab with what it shows when it is complete."""


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
        assert not maps_torch(process)
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


def num_cancelled(server: ServerProcess) -> float:
    return server.metric('kit_requests_total{outcome="cancelled"}')


def test_create_draws_a_picture_that_replays(page: Page, tmp_path: Path) -> None:
    lock_seed(page, "create", "41")
    fill(page, "create", steps="12")
    page.click("#create-button")
    page.wait_for_selector("#create-progress progress")
    wait_for_steps(page, 12)
    page.wait_for_selector("#create-progress .kit-preview img")  # a partial picture
    page.wait_for_selector(".kit-card img")
    card = page.locator(".kit-card")
    for part in ("41", "12", "256 × 256"):
        expect(card.locator("dl")).to_contain_text(part)
    expect(card.locator("dl")).to_contain_text(re.compile(r"time\s*\d+\.\d\d s"))
    expect(page.locator("#create-said")).to_contain_text("1 picture in")
    expect(page.locator("#create-progress progress")).to_have_count(0)
    with page.expect_download() as waiting:
        card.get_by_role("link", name="Download PNG").click()
    file = tmp_path / waiting.value.suggested_filename
    assert re.fullmatch(r"kit-seed-41-[0-9a-f]{8}\.png", file.name)
    waiting.value.save_as(file)
    card.locator("summary").click()
    line, text = card.locator("pre").all_inner_texts()
    assert json.loads(text)["record"]["request"]["sampling"]["seed"] == 41
    setting, *command = line.split()
    name, number = setting.split("=")
    assert command == ["kit", "replay", file.name]
    done = subprocess.run(
        [sys.executable, "-m", "kit.cli", *command[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {name: number},
    )
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_the_edit_example_is_drawn_and_edited_again(page: Page) -> None:
    card, thumbnails = page.locator(".kit-card"), page.locator("#create-images img")
    page.click("#create-edit-example")
    expect(page.locator("#create-prompt textarea")).to_have_value("make the vase blue")
    expect(thumbnails).to_have_count(1)
    fill(page, "create", steps="2")
    page.click("#create-button")
    card.wait_for()
    assert (card.locator("pre").first.text_content() or "").endswith(" --image red-vase.png")
    name = card.get_by_role("link", name="Download PNG").get_attribute("download")
    card.get_by_role("button", name="Use as reference image").click()
    told = page.locator("#create-images-error")
    expect(told).to_have_text(
        f"{name} is reference image 1 now, in place of red-vase.png: at most 1 is taken."
    )
    expect(thumbnails).to_have_count(1)
    fill(page, "create", prompt="put it on the grass")
    page.click("#create-button")
    expect(card).to_have_count(2)
    assert (card.first.locator("pre").first.text_content() or "").endswith(f" --image {name}")
    page.get_by_role("button", name="a yellow moon at night").click()
    expect(thumbnails).to_have_count(0)


WRONG = (
    ("steps", "0", "Steps: got 0, expected an integer from 1 to 1000"),
    ("steps", "2.5", "got 2.5"),
    ("steps", "many", "Steps: 'many' is no number"),
    ("guidance", "101", "Guidance: "),
    ("seed", "x", "Seed: 'x' is no whole number"),
    ("seed", "-1", "-1"),
    ("prompt", "  ", "Prompt: say what the picture should show."),
)


def test_what_is_wrong_is_said_beside_its_field(page: Page) -> None:
    right = {"prompt": "a cat", "steps": "1", "guidance": "1", "seed": "1"}
    lock_seed(page, "create", "1")
    for field, value, text in WRONG:
        fill(page, "create", **(right | {field: value}))
        page.click("#create-button")
        expect(page.locator(f"#create-{field}-error [role=alert]")).to_contain_text(text)
        expect(page.get_by_role("alert")).to_have_count(1)
        place = page.locator(f"#create-{field}-error").bounding_box()
        its_field = page.locator(f"#create-{field}").bounding_box()
        assert place is not None
        assert its_field is not None
        assert 0 <= place["y"] - its_field["y"] - its_field["height"] < 60
    assert page.locator(".kit-card").count() == 0
    # The next request that is right clears it.
    fill(page, "create", **right)
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    assert page.get_by_role("alert").count() == 0


def test_cancel_cancels_on_the_server(page: Page, paged: ServerProcess) -> None:
    before = num_cancelled(paged)
    fill(page, "create", steps="1000")
    page.click("#create-button")
    wait_for_steps(page, 1000)
    assert paged.load()["kit_running_requests"] == 1
    page.click("#cancel-button")
    expect(page.locator("#create-said [role=alert]")).to_contain_text("Cancelled.")
    paged.wait_until_idle()
    assert num_cancelled(paged) == before + 1
    assert page.locator(".kit-card").count() == 0
    expect(page.locator("#cancel-button")).to_be_disabled()
    fill(page, "create", steps="1")
    page.click("#create-button")
    page.wait_for_selector(".kit-card")


def test_closing_the_browser_page_cancels_on_the_server(
    browser: Browser, demo: DemoProcess, paged: ServerProcess
) -> None:
    """A request that waits behind another: nothing of it reaches the page that could be missed."""
    _, answer = paged.post("/v1/jobs", image_body(num_inference_steps=1000))
    job = f"{paged.url}/v1/jobs/{json.loads(answer)['id']}"
    before = num_cancelled(paged)
    with open_page(browser, demo.url) as page:
        page.click("#create-button")
        paged.wait_for(lambda: paged.load()["kit_queue_requests"] == 1)
    paged.wait_for(lambda: num_cancelled(paged) == before + 1)
    assert paged.load()["kit_running_requests"] == 1
    fetch(urllib.request.Request(job, method="DELETE"))
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

    def written(self) -> dict[int, int]:
        """Tokens that the one request wrote, by step."""
        running = [answer["requests"][0] for answer in self.seen.values() if answer["requests"]]
        return {state["step"]: state["tokens_written"] for state in running if state["step"]}


# One call, so that the page cannot change in between.
_READ_PAGES = """() => {
  const map = document.querySelector(".kit-map");
  return [Number(map.dataset.version),
    Array.from(map.querySelectorAll("[data-page]"),
      (e) => [Number(e.dataset.page), e.dataset.kind]),
    Array.from(document.querySelectorAll(".kit-table-of-pages"),
      (e) => e.innerText.replace("page table", "").split(",").map(Number)),
    Array.from(document.querySelectorAll(".kit-bars title"),
      (e) => e.textContent.match(/\\d+/g).map(Number))];
}"""


def test_the_page_map_is_the_pool_while_a_request_runs(page: Page, paged: ServerProcess) -> None:
    log = KVLog(paged.url)
    fill(page, "create", steps="40", prompt="a large red vase on a wooden table, " * 2)
    page.click("#create-button")
    open_tab(page, "Pages")
    page.wait_for_selector(".kit-bars")
    matched: set[int] = set()
    shown: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(matched) < 3 and time.monotonic() < deadline:
        version, squares, tables, bars = page.evaluate(_READ_PAGES)
        answer = log.seen.get(version)
        if answer and answer["requests"]:
            kinds = dict.fromkeys(range(answer["pages"]["total"]), "free")
            for row in (rows := answer["requests"][0]["rows"]):
                kinds |= {held["page"]: held["kind"] for held in row}
            assert dict(squares) == kinds
            assert {"prefix", "target", "free"} == set(kinds.values())
            assert tables == [[held["page"] for held in row] for row in rows]
            shown = dict(bars)
            matched.add(version)
        page.wait_for_timeout(100)
    assert len(matched) == 3, "the map showed too few states of the running request"
    written = log.written()
    assert len(shown) > 1
    assert shown == {step: written[step] for step in shown}
    page.wait_for_selector("#holders .kit-empty")  # it has ended: every page is free again
    _, squares, tables, _ = page.evaluate(_READ_PAGES)
    assert {kind for _, kind in squares} == {"free"}
    assert tables == []
    assert paged.load()["kit_kv_pages_used"] == 0
    expect(page.locator("#fits")).to_contain_text("256")


def test_deployment_says_what_runs_and_its_code_draws_the_same(
    page: Page, tmp_path: Path, paged: ServerProcess
) -> None:
    fill(page, "create", steps="2", prompt="a 'quoted' vase")
    page.click("#create-button")
    page.wait_for_selector(".kit-card")
    seed = page.locator(".kit-card").get_attribute("data-seed")  # the server drew it
    source = page.locator(".kit-card img").get_attribute("src")
    shown = page.request.get(f"{page.url}{source}").body()
    open_tab(page, "Deployment")
    text = page.locator("#deployment")
    for part in ("paged_scheduler", "dense_legacy", "FLASH_ATTN", "cpu_reference 1", "292 pages"):
        expect(text).to_contain_text(part)
    expect(text).to_contain_text("The last request without this page")
    program = page.locator("#deployment .kit-code pre").nth(1).inner_text()
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert (tmp_path / f"picture-{seed}.png").read_bytes() == shown
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


def test_nothing_is_wider_than_the_screen_nor_nameless(browser: Browser, demo: DemoProcess) -> None:
    with open_page(browser, demo.url, dark=True) as page:
        expect(page.locator("#create-steps input")).to_have_value("20")
        fill(page, "create", steps="1")
        page.click("#create-button")
        page.wait_for_selector(".kit-card")
        open_tab(page, "Compare")
        fill(page, "compare", steps="1")
        page.click("#compare-button")
        page.wait_for_selector(".kit-verdict")
        for name, content in TABS.items():
            open_tab(page, name)
            page.locator(content).first.wait_for()
            check_layout(page, name)
        assert page.locator("#kit-states").get_attribute("role") == "status"
        assert page.evaluate("document.documentElement.lang") == "en"


def test_the_keyboard_alone_draws_cancels_and_changes_tabs(page: Page) -> None:
    press = page.keyboard.press

    def go_to(place: str) -> None:
        for _ in range(20):
            if page.evaluate(f"document.activeElement.closest('{place}') !== null"):
                return
            press("Tab")
        pytest.fail(f"Tab does not reach {place}")

    def write(place: str, text: str) -> None:
        go_to(place)
        press("Control+A")
        page.keyboard.type(text)

    go_to("[role=tab]")
    write("#create-prompt", "a blue cup")
    write("#create-steps", "1")
    go_to("#create-button")
    press("Enter")
    page.wait_for_selector(".kit-card")
    assert page.locator(".kit-prompt").inner_text() == "a blue cup"
    page.locator("#create-prompt textarea").focus()
    write("#create-steps", "1000")
    go_to("#create-button")
    press("Enter")
    wait_for_steps(page, 1000)
    go_to("#cancel-button")
    press("Enter")
    expect(page.locator("#create-said [role=alert]")).to_contain_text("Cancelled.")
    page.get_by_role("tab", name="Create").focus()
    press("Tab")
    press("Tab")
    press("Enter")
    expect(page.get_by_role("tab", name="Pages")).to_have_attribute("aria-selected", "true")
