"""A plan against what a start and a request really take on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from allocations import peak_bytes
from golden_cases import case_images, load_case

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, GOLDEN_CHECKPOINT
from kit.engine.preprocess import Preprocessor
from kit.engine.startup import plan_worker
from kit.errors import CapacityError
from kit.kv.store import PagedStore
from kit.messages import RunRequest
from kit.modelspec.deployment import load_config
from kit.plan.plan import plan_deployment
from kit.request import GenerationRequest, SamplingParams
from kit.worker.runner import ModelRunner

PAGED = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
STAGES: dict[str, dict[str, object]] = {
    "dense_legacy": {},
    "paged_scheduler": PAGED | {"max_num_seqs": 3},
    "paged_scheduler, 9 MB": PAGED | {"kv_cache_memory_bytes": 9_000_000},
    "paged_scheduler, pages of 7": PAGED | {"diffusion_kv_page_size": 7},
}


@pytest.mark.parametrize(
    ("folder", "stage"),
    [
        *((DEFAULT_CHECKPOINT, stage) for stage in STAGES),
        (GOLDEN_CHECKPOINT, "dense_legacy"),
        (GOLDEN_CHECKPOINT, "paged_scheduler"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_start_and_a_request_take_what_was_planned(folder: Path, stage: str) -> None:
    overrides = {"0": STAGES[stage]}
    config = load_config(folder, stage_overrides=overrides)
    preprocessor = Preprocessor(folder, config)
    start = plan_worker(preprocessor, config)
    prepared = preprocessor.prepare(
        GenerationRequest("a red vase on a table", SamplingParams(num_inference_steps=2, seed=1))
    )
    layout = prepared.rows.layout
    plan = plan_deployment(folder, stage_overrides=overrides, prompt_tokens=layout.prefix_len)
    assert plan.start_refusal is None
    assert plan.fits

    loaded: list[ModelRunner] = []
    load_peak = peak_bytes(lambda: loaded.append(ModelRunner(start.worker)))
    runner = loaded[0]
    assert plan.mapped_bytes is not None
    assert plan.load_peak_bytes <= load_peak <= plan.load_peak_bytes + plan.mapped_bytes
    info = runner.info
    assert plan.weight_bytes == info.weight_bytes
    assert (plan.kv_mode, plan.kernel) == (start.worker.kv_mode, info.kernel)
    assert (plan.page_size, plan.num_pages) == (info.page_size, start.worker.num_pages)
    assert plan.pool_bytes == info.pool_bytes
    store = getattr(runner.backend, "store", None)
    if store is not None:
        assert isinstance(store, PagedStore)
        assert plan.page_bytes == store.page_bytes
        assert plan.pool_bytes == sum(tensor.nbytes for tensor in store.keys + store.values)

    [size] = plan.sizes
    num_rows = prepared.rows.num_rows
    assert (size.row_tokens, size.num_rows) == (layout.kv_len, num_rows)
    allocation = None
    if start.kv is not None:
        held = 0
        while (got := start.kv.reserve(f"r{held}", num_rows, layout.kv_len)) is not None:
            allocation, held = got, held + 1
        assert held == size.num_requests
        assert allocation is not None
        assert size.num_pages == allocation.num_pages
    run = RunRequest("r", prepared.rows, prepared.sampling, allocation, None)
    results = []
    peak = peak_bytes(lambda: results.append(runner.run(run, lambda _: None, lambda: False)))
    assert size.kv_bytes == results[0].kv_bytes
    working = peak - (size.kv_bytes if allocation is None else 0)
    assert working == pytest.approx(size.activations.peak, rel=0.1)
    assert size.peak_bytes == info.weight_bytes + (
        size.activations.peak + (info.pool_bytes or size.kv_bytes)
    )


@pytest.mark.parametrize("mode", ["dense_legacy", "paged_scheduler"])
def test_a_request_with_references_takes_what_was_planned(mode: str) -> None:
    """One of the largest size, as the plan counts it: a square one, where all have 256 latents."""
    overrides = {"0": STAGES[mode]}
    config = load_config(GOLDEN_CHECKPOINT, stage_overrides=overrides)
    preprocessor = Preprocessor(GOLDEN_CHECKPOINT, config)
    start = plan_worker(preprocessor, config)
    images = case_images(load_case("ti2i_ref1_landscape").inputs)
    sampling = SamplingParams(height=256, width=256, num_inference_steps=2, seed=1)
    prepared = preprocessor.prepare(GenerationRequest("make it red", sampling, images=images))
    layout = prepared.rows.layout
    plan = plan_deployment(
        GOLDEN_CHECKPOINT,
        stage_overrides=overrides,
        prompt_tokens=layout.prefix_len - layout.references[0].num_tokens,
        references=1,
        sizes=["256x256"],
    )
    [size] = plan.sizes
    assert size.row_tokens == layout.kv_len
    allocation = None
    if start.kv is not None:
        allocation = start.kv.reserve("r", 2, layout.kv_len)
        assert allocation is not None
        assert allocation.num_pages == size.num_pages
    runner = ModelRunner(start.worker)
    assert runner.info.weight_bytes == plan.weight_bytes
    run = RunRequest("r", prepared.rows, prepared.sampling, allocation, None, references=images)
    results = []
    peak = peak_bytes(lambda: results.append(runner.run(run, lambda _: None, lambda: False)))
    assert size.kv_bytes == results[0].kv_bytes
    working = peak - (size.kv_bytes if allocation is None else 0)
    assert working == pytest.approx(size.activations.peak, rel=0.15)
    assert results[0].reference_time_s > 0


def test_a_size_that_the_plan_refuses_is_refused_by_the_start_in_the_same_words() -> None:
    overrides = {"0": PAGED | {"kv_cache_memory_bytes": 2_000_000}}
    config = load_config(GOLDEN_CHECKPOINT, stage_overrides=overrides)
    preprocessor = Preprocessor(GOLDEN_CHECKPOINT, config)
    start = plan_worker(preprocessor, config)
    assert start.kv is not None
    plan = plan_deployment(GOLDEN_CHECKPOINT, stage_overrides=overrides, prompt_tokens=1200)
    [size] = plan.sizes
    assert not plan.fits
    assert size.num_requests == 0
    with pytest.raises(CapacityError) as caught:
        start.kv.check_fits(size.num_rows, size.row_tokens, largest_size=lambda _: None)
    assert size.refusal is not None
    said, remedy = size.refusal.split("; ", 1)
    assert said == str(caught.value).split("; ")[0]
    assert remedy.endswith(f"raise kv_cache_memory_bytes to {caught.value.needed_bytes}")
    enough = PAGED | {"kv_cache_memory_bytes": caught.value.needed_bytes}
    again = plan_deployment(GOLDEN_CHECKPOINT, stage_overrides={"0": enough}, prompt_tokens=1200)
    assert again.sizes[0].num_requests == 1
