"""Pages shared between rows, images and requests: the same pictures, and less work."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from caching_engine import PAGE, is_like, make_engine, whole
from golden_cases import case_images, load_case
from golden_check import check_trace
from reuse_cases import num_common_tokens
from safetensors.torch import load_file

from kit.api import GenerationRequest, ImageEngine, SamplingParams
from kit.doctor.golden import case_request
from kit.errors import CancelledError
from kit.request import GenerationResult, StepEvent


@pytest.mark.parametrize(
    "name",
    [
        "t2i_instruct_landscape",
        "ti2i_ref1_landscape",
        pytest.param("ti2i_ref2_square", marks=pytest.mark.long),
    ],
)
def test_golden_cases_over_shared_pages(name: str, checkpoint: Path, tmp_path: Path) -> None:
    """The first run shares its rows' common tokens, the second finds what the first one left."""
    case = load_case(name)
    wanted = load_file(case.tensors_path)
    images = case_images(case.inputs)
    results = []
    with make_engine(checkpoint) as engine:
        rows = engine.preprocessor.prepare(replace(case_request(case.inputs), images=images)).rows
        for index in range(2):
            trace = tmp_path / f"{index}.safetensors"
            request = case_request(case.inputs, trace_path=trace)
            results.append(engine.generate(replace(request, images=images)))
            seen = load_file(trace)
            # A reference whose keys and values were found is not read again.
            check_trace(
                seen, {key: v for key, v in wanted.items() if key in seen or "ref" not in key}, 0, 1
            )
    layout, common = rows.layout, num_common_tokens(rows)
    first, second = (result.metrics for result in results)
    assert (first.cached_tokens, first.shared_tokens) == (0, common)
    assert first.tokens_written[0] == 2 * layout.kv_len - (common if common >= PAGE else 0)
    assert (second.cached_tokens, second.shared_tokens) == (whole(layout.prefix_len), common)
    assert second.tokens_written[0] == 2 * (layout.kv_len - whole(layout.prefix_len))
    assert first.tokens_written[1:] == second.tokens_written[1:]
    pages = -(-layout.kv_len // PAGE)
    assert first.num_pages == second.num_pages == 2 * pages - common // PAGE
    # The last reference ends in the page that the prompt begins in.
    assert [f"ref{i}.vae_moments" in seen for i in range(len(images))] == [
        span.end > whole(layout.prefix_len) for span in layout.references
    ]


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with make_engine(checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Iterator[ImageEngine]:
    with make_engine(checkpoint, enable_prefix_caching=False) as running:
        yield running


@pytest.fixture(scope="module")
def request_with_reference() -> GenerationRequest:
    images = case_images(load_case("ti2i_ref1_landscape").inputs)
    sampling = SamplingParams(height=256, width=256, num_inference_steps=2, seed=5)
    return GenerationRequest("make the cat blue", sampling, images=images, reference_seed=1)


def same_picture(one: GenerationResult, other: GenerationResult) -> bool:
    return is_like(one.image, other.image)


def clear(engine: ImageEngine) -> None:
    engine._queue._scheduler._groups[0].kv.forget_prefixes()  # type: ignore[union-attr]


def test_another_seed_finds_the_prefix_and_gives_its_own_picture(
    engine: ImageEngine, plain: ImageEngine, request_with_reference: GenerationRequest
) -> None:
    clear(engine)
    other = replace(
        request_with_reference, sampling=replace(request_with_reference.sampling, seed=6)
    )
    engine.generate(request_with_reference)
    found = engine.generate(other)
    assert found.metrics.cached_tokens == whole(found.metrics.prefix_tokens)
    assert same_picture(found, plain.generate(other))
    assert not same_picture(found, plain.generate(request_with_reference))


@pytest.mark.parametrize(
    "change",
    [
        {"reference_seed": 2},
        {"system_prompt": "You are a helpful assistant"},
        {"template": "pretrain", "images": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_prefix_is_computed_anew(
    engine: ImageEngine,
    plain: ImageEngine,
    request_with_reference: GenerationRequest,
    change: dict[str, Any],
) -> None:
    clear(engine)
    engine.generate(request_with_reference)
    if not change.get("images", True):
        change = {**change, "reference_seed": None}
    other = replace(request_with_reference, **change)
    result = engine.generate(other)
    # At most the tokens before the reference are the same.
    assert result.metrics.cached_tokens < PAGE
    assert same_picture(result, plain.generate(other))


def test_another_picture_of_the_same_shape_is_computed_anew(
    engine: ImageEngine, request_with_reference: GenerationRequest
) -> None:
    clear(engine)
    engine.generate(request_with_reference)
    (image,) = request_with_reference.images
    pixels = image.latent_pixels.copy()
    pixels[0, 0, 0] ^= 1
    other = replace(request_with_reference, images=(replace(image, latent_pixels=pixels),))
    assert engine.generate(other).metrics.cached_tokens < PAGE


def test_another_prompt_finds_the_reference(
    engine: ImageEngine, plain: ImageEngine, request_with_reference: GenerationRequest
) -> None:
    clear(engine)
    engine.generate(request_with_reference)
    other = replace(request_with_reference, prompt="put the small cat on the green grass")
    result = engine.generate(other)
    assert result.metrics.cached_tokens == whole(result.metrics.shared_tokens) > PAGE
    assert same_picture(result, plain.generate(other))


def test_a_new_reference_behind_one_that_is_found_draws_what_it_would(
    checkpoint: Path,
    plain: ImageEngine,
    request_with_reference: GenerationRequest,
    tmp_path: Path,
) -> None:
    """The latents of references are drawn one after another, the found one's included.

    Pages of one token end where the first reference does.
    """
    one, other = case_images(load_case("ti2i_ref2_square").inputs)
    sampling = replace(request_with_reference.sampling, num_inference_steps=1)
    both = replace(request_with_reference, images=(one, other), sampling=sampling)
    traced = [replace(both, trace_path=str(tmp_path / f"{i}.safetensors")) for i in range(2)]
    with make_engine(checkpoint, diffusion_kv_page_size=1) as engine:
        engine.generate(replace(both, images=(one, one)))
        engine.generate(traced[0])
    plain.generate(traced[1])
    seen, wanted = (load_file(str(request.trace_path)) for request in traced)
    assert "ref0.cond_latents" in wanted
    assert "ref0.cond_latents" not in seen
    assert seen["ref1.cond_latents"].equal(wanted["ref1.cond_latents"])
    torch.testing.assert_close(
        seen["step1.latents_out"], wanted["step1.latents_out"], atol=1e-4, rtol=0
    )


def pages_of(engine: ImageEngine) -> list[torch.Tensor]:
    """Copies of all keys and values of the pool."""
    store = engine._pool.groups[0]._executor._runner.backend.store  # type: ignore[union-attr]
    return [tensor.clone() for tensor in (*store.keys, *store.values)]


def cached_pages(engine: ImageEngine) -> list[int]:
    pool = engine._queue._scheduler._groups[0].kv.pool  # type: ignore[union-attr]
    return [page for page in range(pool.num_pages) if pool.is_cached(page)]


def test_a_request_that_is_cancelled_leaves_nothing_and_spoils_nothing(
    engine: ImageEngine, request_with_reference: GenerationRequest
) -> None:
    clear(engine)
    engine.generate(request_with_reference)
    kept, before = cached_pages(engine), pages_of(engine)
    assert kept
    sampling = replace(request_with_reference.sampling, num_inference_steps=50)
    longer = replace(request_with_reference, sampling=sampling, prompt="make the dog green now")

    def cancel(event: StepEvent) -> None:
        engine.cancel(event.request_id)

    with pytest.raises(CancelledError):
        engine.submit(longer, cancel).future.result(60)
    assert cached_pages(engine) == kept
    for old, new in zip(before, pages_of(engine), strict=True):
        assert old[kept].equal(new[kept])
    # What only the cancelled one wrote is not found: as much as before is.
    again = engine.generate(replace(longer, sampling=request_with_reference.sampling))
    assert again.metrics.cached_tokens == whole(again.metrics.shared_tokens)


@pytest.mark.long
@pytest.mark.parametrize(
    ("levels", "shares_rows", "shares_images", "shares_requests"),
    [
        (["rows"], True, False, False),
        (["images"], False, True, False),
        (["requests"], False, True, True),
        (["rows", "images"], True, True, False),
    ],
    ids=str,
)
def test_each_level_shares_what_it_names(
    levels: list[str],
    shares_rows: bool,
    shares_images: bool,
    shares_requests: bool,
    checkpoint: Path,
    plain: ImageEngine,
    request_with_reference: GenerationRequest,
) -> None:
    one = replace(request_with_reference, parent_id="parent")
    sibling = replace(one, sampling=replace(one.sampling, seed=6))
    with make_engine(checkpoint, prefix_caching_levels=levels) as engine:
        results = [engine.generate(request) for request in (one, sibling)]
        stranger = engine.generate(replace(sibling, parent_id="stranger"))
    assert [result.metrics.shared_tokens > 0 for result in results] == [shares_rows] * 2
    assert (results[1].metrics.cached_tokens > 0) == shares_images
    assert (stranger.metrics.cached_tokens > 0) == shares_requests
    for result in (results[1], stranger):
        assert same_picture(result, plain.generate(sibling))


@pytest.mark.long
def test_random_requests_over_a_small_pool_give_the_pictures_of_none_shared(
    checkpoint: Path, plain: ImageEngine, request_with_reference: GenerationRequest
) -> None:
    """Pages come, are found, and go for others; some requests end early."""
    draw = random.Random(4)
    once = replace(request_with_reference.sampling, num_inference_steps=1)
    (image,) = request_with_reference.images
    mirrored = replace(
        image,
        latent_pixels=image.latent_pixels[:, ::-1].copy(),
        patch_pixels=image.patch_pixels[:, ::-1].copy(),
    )
    pictures = ((image,), (mirrored,), ())
    prompts = ("make the cat blue", "make the cat red", "put it on the grass by the tall trees")
    expected: dict[object, GenerationResult] = {}
    found = 0
    kv_len = plain.preprocessor.prepare(request_with_reference).rows.layout.kv_len
    pages = 3 * -(-kv_len // PAGE)
    page_bytes = plain.kv_view().page_bytes
    with make_engine(checkpoint, kv_cache_memory_bytes=pages * page_bytes) as engine:

        def cancel(event: StepEvent) -> None:
            engine.cancel(event.request_id)

        for _ in range(30):
            prompt, which, seed = draw.choice(prompts), draw.randrange(3), draw.choice((5, 6))
            request = replace(
                request_with_reference,
                prompt=prompt,
                sampling=once,
                images=pictures[which],
                reference_seed=seed if pictures[which] else None,
            )
            if draw.random() < 0.2:
                longer = replace(request, sampling=replace(once, num_inference_steps=9))
                with pytest.raises(CancelledError):
                    engine.submit(longer, cancel).future.result(60)
                continue
            key = (prompt, which, seed)
            if key not in expected:
                expected[key] = plain.generate(request)
            result = engine.generate(request)
            assert same_picture(result, expected[key])
            found += result.metrics.cached_tokens > 0
            seen = engine.status().pages
            assert (seen.used, seen.free) == (0, pages)
        evicted = engine._queue.snapshot().num_pages_evicted
    assert found > 10
    assert evicted > 50


@pytest.mark.long
@pytest.mark.parametrize(
    "parallel",
    [
        {"tensor_parallel_size": 2},
        {"sequence_parallel_size": 2, "ulysses_degree": 2},
        {"cfg_parallel_size": 2},
    ],
    ids=["TP2", "SP2", "CFG2"],
)
def test_ranks_share_what_one_rank_does_but_for_rows_apart(
    parallel: dict[str, int],
    checkpoint: Path,
    plain: ImageEngine,
    request_with_reference: GenerationRequest,
) -> None:
    """Rows on ranks of their own share nothing; each rank finds its own of earlier requests."""
    other = replace(
        request_with_reference, sampling=replace(request_with_reference.sampling, seed=6)
    )
    stage = {"parallel_config": parallel, "distributed_executor_backend": "mp"}
    with make_engine(checkpoint, allow_unvalidated_topology=True, **stage) as engine:
        first, second = (engine.generate(each) for each in (request_with_reference, other))
    assert (first.metrics.shared_tokens > 0) == ("cfg_parallel_size" not in parallel)
    assert first.metrics.cached_tokens == 0
    assert second.metrics.cached_tokens == whole(second.metrics.prefix_tokens)
    assert same_picture(first, plain.generate(request_with_reference))
    assert same_picture(second, plain.generate(other))
