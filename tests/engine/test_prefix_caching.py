"""An engine that shares prefixes: pictures stay the same, and every door tells what was shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from engine_gate import PATIENCE_S, Gate
from golden_cases import case_images, load_case
from prometheus_client.parser import text_string_to_metric_families

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.engine.kv_view import KVView
from kit.errors import CancelledError
from kit.request import ReferenceImage

P = 16
CACHING = {
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
    "diffusion_kv_page_size": P,
    "enable_prefix_caching": True,
}
LONG = "a cat on a sofa in front of a window with a view of a quiet harbour at night, " * 2
SYSTEM = "You draw what you are asked for, and nothing that nobody asked you to draw at all."


def make_engine(checkpoint: Path, *levels: str, **stage: object) -> ImageEngine:
    if levels:
        stage["prefix_caching_levels"] = list(levels)
    return ImageEngine(checkpoint, load_config(checkpoint, stage_overrides={"0": CACHING | stage}))


def asked(prompt: str = LONG, *, seed: int = 1, **changes: Any) -> GenerationRequest:
    sampling = SamplingParams(num_inference_steps=1, seed=seed)
    return GenerationRequest(prompt, sampling, system_prompt=SYSTEM, **changes)


def counted(engine: ImageEngine) -> dict[str, float]:
    text, _ = engine.metrics.exposition()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if "prefix" in sample.name or "kv_pages" in sample.name
    }


def is_like(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> bool:
    """Sums of another order end a level apart at most."""
    return int(np.abs(one.astype(int) - other.astype(int)).max()) <= 1


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with make_engine(checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Iterator[ImageEngine]:
    """Shares nothing."""
    with make_engine(checkpoint, enable_prefix_caching=False) as running:
        yield running


def whole(tokens: int) -> int:
    return tokens // P * P


def test_later_requests_find_the_prefix_and_draw_the_same(
    engine: ImageEngine, plain: ImageEngine
) -> None:
    before = counted(engine)
    requests = (asked(), asked(seed=2), asked("a dog", seed=2))
    results = [engine.generate(request) for request in requests]
    for request, result in zip(requests[1:], results[1:], strict=True):
        expected = plain.generate(request)
        assert (expected.metrics.cached_tokens, expected.metrics.shared_tokens) == (0, 0)
        assert is_like(result.image, expected.image)
    assert plain.status().pages.cached == 0
    assert counted(plain)["kit_prefix_cache_queries_total"] == 0
    first, second, other = (result.metrics for result in results)
    assert first.cached_tokens == 0
    assert P < first.shared_tokens < first.prefix_tokens, "all but the prompt and what follows"
    assert second.shared_tokens == other.shared_tokens == first.shared_tokens
    assert second.cached_tokens == whole(second.prefix_tokens)
    assert other.cached_tokens == whole(other.shared_tokens), "the words are others"
    per_row = -(-(first.prefix_tokens + first.target_tokens) // P)
    assert first.num_pages == 2 * per_row - first.shared_tokens // P
    assert second.num_pages == first.num_pages, "found pages are held, too"
    now = counted(engine)
    prefixes = [result.metrics.prefix_tokens for result in results]
    assert now["kit_prefix_cache_queries_total"] - before["kit_prefix_cache_queries_total"] == (
        2 * sum(prefixes)
    )
    assert now["kit_prefix_cache_hits_total"] - before["kit_prefix_cache_hits_total"] == 2 * (
        second.cached_tokens + other.cached_tokens
    )


@pytest.mark.long
def test_a_single_row_finds_what_two_computed(engine: ImageEngine, plain: ImageEngine) -> None:
    pair = asked("a boat", seed=4)
    single = replace(pair, sampling=replace(pair.sampling, guidance_scale=1.0))
    engine.generate(pair)
    found = engine.generate(single)
    assert found.metrics.cached_tokens == whole(found.metrics.prefix_tokens)
    assert found.metrics.shared_tokens == 0
    assert is_like(found.image, plain.generate(single).image)


def kinds(view: KVView) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for request in view.requests:
        for row in request.rows:
            for page in row:
                found.setdefault(page.page, set()).add(page.kind)
    return found


def test_the_view_tells_shared_pages_and_cached_ones(checkpoint: Path) -> None:
    with make_engine(checkpoint, max_num_seqs=2) as engine:
        gate = Gate()
        first = engine.submit(asked(), gate)
        second = engine.submit(asked("a dog"))
        gate.wait()
        view = engine.kv_view()
        gate.open()
        first.future.result(PATIENCE_S)
        second.future.result(PATIENCE_S)
        [runs, waits] = view.requests
        assert (runs.state, waits.state) == ("running", "admitted")
        num_shared = runs.shared_tokens // P
        for request in view.requests:
            assert request.cached_tokens == 0, "nothing was published when they were booked"
            tables = [[page.page for page in row] for row in request.rows]
            assert tables[0][:num_shared] == tables[1][:num_shared]
            assert [p.kind for p in request.rows[0]].count("shared") == num_shared
        assert all(len(kind) == 1 for kind in kinds(view).values()), "a page has one kind"
        assert view.pages.used == len(kinds(view))
        idle = engine.kv_view()
        assert idle.requests == ()
        assert (idle.pages.used, idle.pages.free) == (0, idle.pages.total)
        assert idle.pages.cached == engine.status().pages.cached
        assert counted(engine)["kit_kv_pages_cached"] == idle.pages.cached > num_shared


def test_a_request_that_is_cancelled_leaves_nothing(checkpoint: Path) -> None:
    with make_engine(checkpoint) as engine:
        gate = Gate()
        long = SamplingParams(num_inference_steps=50, seed=1)
        handle = engine.submit(replace(asked(), sampling=long), gate)
        gate.wait()
        engine.cancel(handle.request_id)
        gate.open()
        with pytest.raises(CancelledError):
            handle.future.result(PATIENCE_S)
        assert engine.status().pages.cached == 0
        assert engine.generate(asked()).metrics.cached_tokens == 0


def test_images_of_one_request_share_and_others_do_not(checkpoint: Path) -> None:
    with make_engine(checkpoint, "images") as engine:
        seen = [
            engine.generate(asked(seed=seed, parent_id=parent)).metrics
            for seed, parent in enumerate("ppq")
        ]
        assert [bool(metrics.cached_tokens) for metrics in seen] == [False, True, False]
        assert {metrics.shared_tokens for metrics in seen} == {0}


@pytest.mark.long
def test_rows_alone_leave_nothing_behind(checkpoint: Path) -> None:
    with make_engine(checkpoint, "rows") as engine:
        for _ in range(2):
            metrics = engine.generate(asked(parent_id="p")).metrics
            assert metrics.cached_tokens == 0
            assert metrics.shared_tokens > P
        assert engine.status().pages.cached == 0


@pytest.mark.long
def test_an_edit_with_a_found_picture_is_the_same(
    engine: ImageEngine, plain: ImageEngine, picture: ReferenceImage
) -> None:
    request = asked("a scarf", seed=7, images=(picture,))
    engine.generate(request)
    for other in (request, replace(request, prompt="a tie")):
        found = engine.generate(other)
        assert found.metrics.cached_tokens > found.metrics.reference_tokens
        assert is_like(found.image, plain.generate(other).image)


@pytest.fixture(scope="module")
def picture() -> ReferenceImage:
    [image] = case_images(load_case("ti2i_ref1_landscape").inputs)
    return image


def test_references_are_found_by_their_pixels_and_the_seed_of_their_latents(
    engine: ImageEngine, picture: ReferenceImage
) -> None:
    request = asked("a hat", seed=5, images=(picture,))
    first = engine.generate(request)
    layout = engine.preprocessor.prepare(request).rows.layout
    before = whole(layout.references[0].timestep)

    def found(**changes: Any) -> int:
        return engine.generate(replace(request, **changes)).metrics.cached_tokens

    everything = whole(layout.prefix_len)
    assert first.metrics.shared_tokens > layout.references[0].end
    again = replace(request.sampling, seed=6)
    assert found(sampling=again) == before, "its latents are drawn with another seed"
    assert found(sampling=again, reference_seed=5) == everything
    other = picture.latent_pixels.copy()
    other[-1, -1] ^= 1
    assert found(images=(replace(picture, latent_pixels=other),)) == before
