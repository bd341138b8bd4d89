"""What an engine tells of shared prefixes: metrics, counters, the view of its pages.

What they do to pictures, level by level: tests/e2e/test_prefix_caching.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from caching_engine import PAGE, is_like, make_engine, whole
from engine_gate import PATIENCE_S, Gate
from prometheus_client.parser import text_string_to_metric_families

from kit.api import GenerationRequest, ImageEngine, SamplingParams
from kit.engine.kv_view import KVView

LONG = "a cat on a sofa in front of a window with a view of a quiet harbour at night, " * 2
SYSTEM = "You draw what you are asked for, and nothing that nobody asked you to draw at all."


def asked(prompt: str = LONG, *, seed: int = 1) -> GenerationRequest:
    sampling = SamplingParams(num_inference_steps=1, seed=seed)
    return GenerationRequest(prompt, sampling, system_prompt=SYSTEM)


def counted(engine: ImageEngine) -> dict[str, float]:
    text, _ = engine.metrics.exposition()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if "prefix" in sample.name or "kv_pages" in sample.name
    }


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with make_engine(checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Iterator[ImageEngine]:
    """Shares nothing."""
    with make_engine(checkpoint, enable_prefix_caching=False) as running:
        yield running


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
    assert PAGE < first.shared_tokens < first.prefix_tokens, "all but the prompt and what follows"
    assert second.shared_tokens == other.shared_tokens == first.shared_tokens
    assert second.cached_tokens == whole(second.prefix_tokens)
    assert other.cached_tokens == whole(other.shared_tokens), "the words are others"
    per_row = -(-(first.prefix_tokens + first.target_tokens) // PAGE)
    assert first.num_pages == 2 * per_row - first.shared_tokens // PAGE
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
        num_shared = runs.shared_tokens // PAGE
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


def test_evicted_pages_are_counted(engine: ImageEngine, checkpoint: Path) -> None:
    per_row = -(-engine.preprocessor.prepare(asked()).rows.layout.kv_len // PAGE)
    pool_bytes = (2 * per_row + 1) * engine.kv_view().page_bytes
    with make_engine(checkpoint, kv_cache_memory_bytes=pool_bytes) as small:
        small.generate(asked())
        before, known = counted(small), small.status().pages.cached
        assert (before["kit_prefix_cache_evictions_total"], known > 1) == (0, True)
        other = small.generate(replace(asked(), system_prompt=None))
        assert other.metrics.cached_tokens == 0
        now = counted(small)
        blank = small.status().pages.total - known
        evicted = other.metrics.num_pages - blank
        assert now["kit_prefix_cache_evictions_total"] == evicted > 0
        assert small.status().pages.cached > known - evicted, "what it published is there as well"
