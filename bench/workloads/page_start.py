"""What `kit demo` takes to its first page, and a click there to the first picture."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.request

from bench.browser import open_browser
from bench.demo_process import DemoProcess
from bench.pixels import decode, largest_difference
from bench.records import EqualityCheck, Measurement, Record, median_of
from bench.registry import Context
from bench.server_process import PATIENCE_S, fetch, image_body

PROMPT = "A red ceramic vase on a wooden table"
NUM_STEPS = 20
"""What the form holds when the page opens, and what the shipped checkpoint's servers draw with."""

MAX_PAGE_S = 15.0
MAX_IMAGE_S = 8.0
"""On two cores of an otherwise idle machine, where the servers draw on one."""


def run(context: Context) -> Record:
    """Start everything once to warm the disk's cache, then `context.repeats` times."""
    results = [_measure() for _ in range(1 + context.repeats)][1:]
    difference = max(apart for _, apart in results)
    return context.record(
        parameters={
            "prompt": PROMPT,
            "size": "256x256",
            "num_inference_steps": NUM_STEPS,
            "warmup_runs": 1,
            "limit_page_s": MAX_PAGE_S,
            "limit_image_s": MAX_IMAGE_S,
        },
        equality=EqualityCheck.of(
            compared="the page's picture against the server's own answer, largest difference",
            limit=0,
            seen=difference,
        ),
        baseline=Measurement("the limits", ({"page_s": MAX_PAGE_S, "image_s": MAX_IMAGE_S},)),
        candidate=Measurement(
            "kit demo with servers of its own, in a headless browser",
            tuple(row for row, _ in results),
        ),
        ratios={
            "page_over_limit": ("candidate.page_s", "baseline.page_s"),
            "image_over_limit": ("candidate.image_s", "baseline.image_s"),
        },
    )


def as_table(record: Record) -> str:
    """Return the medians of a record as a Markdown table."""
    parts = {
        "page_s": ("start of `kit demo` to the page, its controls shown", MAX_PAGE_S),
        "image_s": (f"click on Create to the first picture, {NUM_STEPS} steps", MAX_IMAGE_S),
    }
    lines = ["| part | seconds, median | limit |", "| --- | --- | --- |"]
    for column, (name, limit) in parts.items():
        seconds = median_of(record, f"candidate.{column}")
        lines.append(f"| {name} | {seconds:.1f} | {limit:g} |")
    return "\n".join(lines) + "\n"


def _measure() -> tuple[dict[str, float], int]:
    """Return one row, and how far the picture is from the one that the server answers with.

    The click comes as soon as the page has its button: image_s holds what the server still loads.
    """
    load_before = os.getloadavg()[0]
    with open_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        started = time.perf_counter()
        with DemoProcess("--server-port", "0") as demo:
            answered_s = time.perf_counter() - started
            page.goto(demo.url)
            page.wait_for_selector("#create-button:enabled")
            page_s = time.perf_counter() - started
            clicked = time.perf_counter()
            page.click("#create-button")
            page.wait_for_function(
                "() => document.querySelector('.kit-card img')?.naturalWidth > 0"
            )
            image_s = time.perf_counter() - clicked
            card = page.locator(".kit-card")
            source = card.locator("img").get_attribute("src")
            seed = int(card.get_attribute("data-seed") or "")
            with urllib.request.urlopen(f"{demo.url}/{source}", timeout=PATIENCE_S) as answer:
                shown = answer.read()
            apart = largest_difference(decode(shown), decode(_ask(demo.server_url(), seed)))
    row = {
        "page_s": page_s,
        "answered_s": answered_s,
        "image_s": image_s,
        "load_average": load_before,
    }
    return row, apart


def _ask(url: str, seed: int) -> bytes:
    """Return the server's own answer to what the page has asked for."""
    body = image_body(PROMPT, seed=seed, num_inference_steps=NUM_STEPS)
    headers = {"Content-Type": "application/json"}
    data = json.dumps(body).encode()
    _, text = fetch(urllib.request.Request(f"{url}/v1/images/generations", data, headers))
    return base64.b64decode(json.loads(text)["data"][0]["b64_json"])
