"""Reference images on the page in headless Chromium, against servers that take them."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from bench.demo_process import DemoProcess
from bench.server_process import ServerProcess
from kit.checkpoint.shipped import GOLDEN_CHECKPOINT
from kit.engine.images import read_picture
from kit.engine.references import pixel_hash

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = str(GOLDEN_CHECKPOINT)
FIRST, SECOND = (GOLDEN / f"ref_image_{j}.png" for j in range(2))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of two servers that differ in how they keep keys and values."""
    folder = tmp_path_factory.mktemp("servers")
    paged = ServerProcess(folder / "paged", MODEL, "--deploy-config", "hunyuan_image3_paged.yaml")
    with paged, ServerProcess(folder / "dense", MODEL) as dense:
        paged.wait_until_ready()
        dense.wait_until_ready()
        yield paged.url, dense.url


@pytest.fixture(scope="module")
def demo(servers: tuple[str, str]) -> Iterator[DemoProcess]:
    """Their page."""
    paged, dense = servers
    with DemoProcess("--server", paged, "--compare-server", dense) as process:
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


def reference_seeds(page: Page) -> Locator:
    """What the cards of the open tab say of them."""
    facts = page.locator(".kit-card:visible dl div").filter(has_text="reference seed")
    return facts.locator("dd")


def draw(page: Page) -> None:
    page.click("#create-button")
    page.wait_for_selector(".kit-card")


def reuse(page: Page) -> Locator:
    """The buttons of the open tab that make a picture a reference image."""
    return page.locator(".kit-card:visible").get_by_text("Use as reference image")


def file_names(page: Page) -> list[str]:
    """Of the open tab's pictures, as a browser saves them."""
    links = page.locator(".kit-card:visible a[download]")
    names: list[str] = links.evaluate_all("(all) => all.map((e) => e.download)")
    return names


def shown_file(page: Page, index: int) -> bytes:
    """The file of a picture on Create."""
    source = page.locator("#gallery img").nth(index).get_attribute("src")
    return page.request.get(f"{page.url}{source}").body()


def form_values(page: Page, form: str) -> list[str | bool]:
    """What the fields hold, but for the reference images."""
    fields = page.locator(f"[id^={form}-]").locator("textarea, input:not([type=file])")
    held: list[str | bool] = fields.evaluate_all(
        "(all) => all.map((e) => e.type === 'checkbox' ? e.checked : e.value)"
    )
    return held


def test_an_edit_is_drawn_and_its_commands_draw_the_same(page: Page, tmp_path: Path) -> None:
    lock_seed(page, "create", "41")
    fill(page, "create", **{"reference-seed": "5"})
    choose(page, "create", SECOND)
    choose(page, "create", FIRST)
    draw(page)
    shown = shown_file(page, 0)
    file = tmp_path / file_names(page)[0]
    file.write_bytes(shown)
    recorded = read_picture(file).record.request
    assert (recorded.sampling.seed, recorded.sampling.reference_seed) == (41, 5)
    expect(reference_seeds(page)).to_have_text(["5"])
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


def test_a_picture_becomes_a_reference_image_by_one_click(page: Page, tmp_path: Path) -> None:
    lock_seed(page, "create", "41")
    fill(page, "create", **{"reference-seed": ""})
    page.locator("#create-count input[type=number]").fill("2")
    page.locator("#create-count input[type=number]").press("Tab")
    page.click("#create-button")
    expect(reuse(page)).to_have_count(2)
    second, first = file_names(page)
    before = form_values(page, "create")
    assert {"41", "1", "2", False} <= set(before), before
    thumbnails, told = page.locator("#create-images img"), page.locator("#create-images-error")
    reuse(page).last.click()
    expect(told).to_have_text(f"{first} is reference image 1 now.")
    expect(thumbnails).to_have_count(1)
    choose(page, "create", FIRST, SECOND)
    reuse(page).last.click()
    expect(told).to_have_text(f"{first} is reference image 1 already.")
    reuse(page).first.click()
    expect(told).to_have_text(
        f"{second} is reference image 3 now, in place of ref_image_1.png: at most 3 are taken."
    )
    expect(thumbnails).to_have_count(3)
    assert form_values(page, "create") == before
    page.click("#create-button")
    expect(reuse(page)).to_have_count(4)
    expect(told).to_be_empty()
    command = page.locator(".kit-card pre").first.text_content() or ""
    names = (first, "ref_image_0.png", second)
    assert command.endswith("".join(f" --image {name}" for name in names)), command
    hashes = []
    for index in (2, 3):
        with Image.open(io.BytesIO(shown_file(page, index))) as image:
            hashes.append(pixel_hash(np.asarray(image)))
    edited = tmp_path / "edited.png"
    edited.write_bytes(shown_file(page, 0))
    recorded = [image.sha256 for image in read_picture(edited).record.request.images]
    assert [recorded[2], recorded[0]] == hashes  # the newest picture comes first


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
    fill(page, "create", **{"reference-seed": "5"})
    page.click("#create-button")
    seed_error = page.locator("#create-reference-seed-error [role=alert]")
    expect(seed_error).to_contain_text("got 5, but there is no reference image")
    expect(error).to_have_count(0)
    fill(page, "create", **{"reference-seed": ""})
    draw(page)
    expect(seed_error).to_have_count(0)
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
    expect(reference_seeds(page)).to_have_text(["5", "5"])  # the seed: none was typed
    reuse(page).last.click()
    told = page.locator("#compare-images-error")
    expect(told).to_have_text(f"{file_names(page)[1]} is reference image 2 now.")
    open_tab(page, "Create")
    expect(page.locator("#create-images img")).to_have_count(0)


@pytest.mark.parametrize("place", ["first", "second"])
def test_the_field_is_closed_where_a_server_takes_no_images(
    place: str,
    browser: Browser,
    servers: tuple[str, str],
    text_checkpoint: Path,
    tmp_path: Path,
) -> None:
    flags = ("--server", "--compare-server")
    with ServerProcess(tmp_path / "text", str(text_checkpoint)) as text:
        urls = (text.url, servers[0]) if place == "first" else (servers[0], text.url)
        named = itertools.chain.from_iterable(zip(flags, urls, strict=True))
        with DemoProcess(*named) as demo, open_page(browser, demo.url) as page:
            for server in ("first server", "second server"):
                wait_for_state(page, "ready", server)
            if place == "first":
                note = page.locator("#create-images-note")
                expect(note).to_contain_text("This checkpoint takes no reference images: ")
                expect(note).to_contain_text("sequence_template is 'pretrain'")
            expect(page.locator("#create-images input")).to_have_count(int(place == "second"))
            seed = page.locator("#create-reference-seed")
            expect(seed).to_be_visible(visible=place == "second")
            fill(page, "create", steps="1", guidance="1")
            draw(page)
            button = page.locator(".kit-card [data-reuse]")
            expect(button).to_be_visible(visible=place == "second")
            expect(page.locator("#create-edit-example")).to_be_hidden()
            open_tab(page, "Compare")
            note = page.locator("#compare-images-note")
            expect(note).to_contain_text(f"of the {place} server takes no reference images: ")
            expect(page.locator("#compare-images input")).to_have_count(0)
            expect(page.locator("#compare-reference-seed")).to_be_hidden()


def test_thumbnails_fit_every_screen(page: Page) -> None:
    choose(page, "create", FIRST, SECOND, FIRST)
    check_layout(page, "Create")
