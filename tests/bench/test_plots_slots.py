"""What notebook 2 draws: pages from the engine's own answer, slots from the tensors themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.plots.pages import draw_pool, draw_rows
from bench.plots.requests import draw_pictures, draw_step_times, draw_written, summarise_runs
from bench.plots.slots import Changes, draw_changes, watch_slots
from kit.api import GenerationRequest, GenerationResult, ImageEngine, SamplingParams, load_config
from kit.config.deploy import DeployConfig
from kit.engine.kv_view import KVView

PAGE_SIZE = 16
POOL_BYTES = 1 << 20
REQUEST = GenerationRequest(
    "a red vase", SamplingParams(num_inference_steps=3, seed=1, guidance_scale=4.0)
)


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> DeployConfig:
    stage = {"diffusion_kv_page_size": PAGE_SIZE, "kv_cache_memory_bytes": POOL_BYTES}
    return load_config(checkpoint, "hunyuan_image3_paged", stage_overrides={"0": stage})


@pytest.fixture(scope="module")
def ran(checkpoint: Path, config: DeployConfig) -> tuple[GenerationResult, KVView]:
    views: list[KVView] = []
    with ImageEngine(checkpoint, config) as engine:
        result = engine.generate(REQUEST, on_step=lambda _: views.append(engine.kv_view()))
    return result, views[-1]


@pytest.fixture(scope="module")
def seen(checkpoint: Path, config: DeployConfig) -> Changes:
    return watch_slots(checkpoint, config, REQUEST, held_before=(2, 1, 3))


def test_steps_change_what_they_are_said_to_write(seen: Changes) -> None:
    prefix, end = seen.layout.prefix_len, seen.layout.kv_len
    assert seen.changed.shape == (3, 2, len(seen.allocation.page_tables[0]) * PAGE_SIZE)
    assert seen.changed[0, :, :end].all()
    assert not seen.changed[1:, :, :prefix].any()
    assert seen.changed[1:, :, prefix:end].all()
    assert not seen.changed[:, :, end:].any()
    assert seen.elsewhere == 0


def test_pages_of_earlier_requests_lie_between(
    seen: Changes, ran: tuple[GenerationResult, KVView]
) -> None:
    pages = [page for table in seen.allocation.page_tables for page in table]
    assert pages != list(range(len(pages)))
    assert 2 not in pages, "the second earlier request still holds its page"
    np.testing.assert_array_equal(seen.image, ran[0].image)


def test_a_changed_slot_more_is_a_number_more(seen: Changes) -> None:
    drawing = draw_changes("t", seen)
    changed = seen.changed.copy()
    changed[2, 0, 0] = True
    other = draw_changes(
        "t", Changes(seen.layout, seen.allocation, changed, seen.elsewhere, seen.image)
    )
    name = "step 3, prefix slots changed"
    assert (drawing.numbers[name], other.numbers[name]) == (0, 1)
    assert len(other.figure.axes[0].patches) == len(drawing.figure.axes[0].patches) + 1
    assert drawing.numbers["step 3, target slots changed"] == seen.layout.target_len


def test_the_pool_is_drawn_as_the_engine_tells_it(ran: tuple[GenerationResult, KVView]) -> None:
    result, view = ran
    numbers: dict[str, Any] = dict(draw_pool("t", view).numbers)
    assert sum(n for kind, n in numbers.items() if kind != "free") == view.pages.used
    assert numbers["free"] == view.pages.total - view.pages.used
    rows: dict[str, Any] = dict(draw_rows("t", view.requests[0], PAGE_SIZE).numbers)
    assert rows["prefix tokens"] == result.metrics.prefix_tokens
    assert rows["target tokens"] == result.metrics.target_tokens
    assert rows["pages"] == result.metrics.num_pages == view.pages.used
    slots = view.pages.used // 2 * PAGE_SIZE
    assert rows["tail slots"] == slots - rows["prefix tokens"] - rows["target tokens"]


def test_requests_are_drawn_from_their_metrics(ran: tuple[GenerationResult, KVView]) -> None:
    result, _ = ran
    metrics = result.metrics
    written = draw_written("t", {"a": metrics.tokens_written}).numbers
    assert written["a, tokens written"] == sum(metrics.tokens_written)
    assert written["a, tokens if nothing were kept"] == 3 * metrics.tokens_written[0]
    times = draw_step_times("t", [metrics, metrics])
    bars = [bar.get_height() for bar in times.figure.axes[0].patches]  # type: ignore[attr-defined]
    assert bars == pytest.approx([1e3 * seconds for seconds in metrics.step_times_s])
    assert f"| {1e3 * metrics.decode_time_s:.1f} |" in summarise_runs([metrics])
    pictures = draw_pictures("t", {"a": result.image, "b": result.image // 2}).numbers
    assert pictures["a, mean level"] == result.image.mean()
    assert pictures["b, mean level"] != pictures["a, mean level"]
