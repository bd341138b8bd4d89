"""Reference images on the page in headless Chromium, against servers that take them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_page import (
    check_layout,
    fill,
    lock_seed,
    open_browser,
    open_page,
    open_tab,
    wait_for_state,
)
from golden_cases import GOLDEN
from playwright.sync_api import Browser, Page, expect

from bench.demo_process import DemoProcess
from bench.server_process import ServerProcess
from kit.checkpoint.shipped import GOLDEN_CHECKPOINT
from kit.engine.images import read_picture

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = str(GOLDEN_CHECKPOINT)
FIRST, SECOND = (GOLDEN / f"ref_image_{j}.png" for j in range(2))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoProcess]:
    """A page whose servers differ in how they keep keys and values."""
    folder = tmp_path_factory.mktemp("servers")
    paged = ServerProcess(folder / "paged", MODEL, "--deploy-config", "hunyuan_image3_paged.yaml")
    with paged, ServerProcess(folder / "dense", MODEL) as dense:
        paged.wait_until_ready()
        dense.wait_until_ready()
        with DemoProcess("--server", paged.url, "--compare-server", dense.url) as process:
            yield process
            assert [line for line in process.lines if "Traceback" in line] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, demo: DemoProcess) -> Iterator[Page]:
    with open_page(browser, demo.url) as opened:
        wait_for_state(opened, "ready")
        expect(opened.locator("#create-steps input")).to_have_value("4")
        fill(opened, "create", steps="1", guidance="1")
        yield opened


def choose(page: Page, form: str, *files: Path) -> None:
    """Add files to a form's reference images."""
    images = page.locator(f"#{form}-images")
    before = images.locator("img").count()
    images.locator("input[type=file]").set_input_files(files)
    expect(images.locator("img")).to_have_count(before + len(files))


def draw(page: Page) -> None:
    page.click("#create-button")
    page.wait_for_selector(".kit-card")


def test_an_edit_is_drawn_and_its_commands_draw_the_same(page: Page, tmp_path: Path) -> None:
    lock_seed(page, "create", "41")
    choose(page, "create", SECOND)
    choose(page, "create", FIRST)
    draw(page)
    source = page.locator(".kit-card img").get_attribute("src")
    shown = page.request.get(f"{page.url}{source}").body()
    file = tmp_path / "kit-seed-41.png"
    file.write_bytes(shown)
    recorded = read_picture(file).record.request
    assert recorded.sampling.reference_seed == 41
    assert [(image.width, image.height) for image in recorded.images] == [(220, 110), (150, 150)]
    for image in (FIRST, SECOND):
        shutil.copy(image, tmp_path)
    page.locator(".kit-card summary").click()
    setting, *command = page.locator(".kit-card pre").first.inner_text().split()
    name, number = setting.split("=")
    assert command[:2] == ["kit", "replay"]
    command = [MODEL if word == "CHECKPOINT" else word for word in command]
    subprocess.run(
        [sys.executable, "-m", "kit.cli", *command[1:]],
        cwd=tmp_path,
        check=True,
        env=os.environ | {name: number},
    )
    open_tab(page, "Deployment")
    expect(page.locator("#deployment")).to_contain_text("The last request without this page")
    line, program = page.locator("#deployment .kit-ask pre").all_inner_texts()
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    assert (tmp_path / "picture.png").read_bytes() == shown
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert (tmp_path / "picture-41.png").read_bytes() == shown


def test_what_is_wrong_with_an_image_is_said_at_its_field(page: Page, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(FIRST.read_bytes()[:-400])
    error = page.locator("#create-images-error [role=alert]")
    choose(page, "create", broken)
    page.click("#create-button")
    expect(error).to_contain_text("Reference images: cannot be read as a png, jpeg or webp image")
    page.get_by_role("button", name="Delete image").click()
    choose(page, "create", FIRST, FIRST, FIRST, SECOND)
    page.click("#create-button")
    expect(error).to_contain_text("got 4 reference images, at most 3 are taken")
    assert page.locator(".kit-card").count() == 0
    page.get_by_role("button", name="Clear", exact=True).click()
    draw(page)
    expect(error).to_have_count(0)
    expect(page.locator(".kit-card pre").first).not_to_contain_text("--image")


def test_both_servers_of_a_comparison_get_the_images(page: Page) -> None:
    open_tab(page, "Compare")
    fill(page, "compare", steps="1", guidance="1", seed="5")
    choose(page, "compare", FIRST)
    page.click("#compare-button")
    verdict = page.locator(".kit-verdict")
    expect(verdict).to_have_text("Identical: all 65,536 pixels are equal.")
    shown = page.locator("#comparison .kit-card pre").all_text_contents()
    commands = [text for text in shown if text.startswith("OMP_NUM_THREADS")]
    assert [text.endswith(" --image ref_image_0.png") for text in commands] == [True, True]


def test_thumbnails_fit_every_screen(page: Page) -> None:
    choose(page, "create", FIRST, SECOND, FIRST)
    check_layout(page, "Create")
