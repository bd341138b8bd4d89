"""The worker alone: what it writes where, and that nothing but its own pages reaches a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kit.attention.paged import PagedKV
from kit.config.deploy import DeployConfig
from kit.engine.preprocess import Preprocessor
from kit.errors import CancelledError, KVCacheError
from kit.kv.allocation import KVAllocation
from kit.messages import RunRequest, WorkerConfig
from kit.request import GenerationRequest, SamplingParams, StepEvent
from kit.worker.runner import ModelRunner

PAGE_SIZE = 16
NUM_PAGES = 80

Run = Callable[[ModelRunner, RunRequest], torch.Tensor]


def make_runner(checkpoint: Path, mode: str, dtype: str = "float32") -> ModelRunner:
    paged = mode == "paged_scheduler"
    return ModelRunner(
        WorkerConfig(
            model_path=str(checkpoint),
            device="cpu",
            dtype=dtype,  # type: ignore[arg-type]
            vae_dtype="float32",
            kv_mode=mode,  # type: ignore[arg-type]
            attention_backend="FLASH_ATTN",
            page_size=PAGE_SIZE if paged else None,
            num_pages=NUM_PAGES if paged else 0,
        )
    )


def make_run(checkpoint: Path, pages: list[int] | None, *, seed: int = 3) -> RunRequest:
    """A request of two rows; its page tables are cut from `pages` in order."""
    sampling = SamplingParams(height=256, width=256, num_inference_steps=2, seed=seed)
    prepared = Preprocessor(checkpoint, DeployConfig()).prepare(
        GenerationRequest("a cat on a sofa", sampling)
    )
    allocation = None
    if pages is not None:
        length = prepared.rows.layout.kv_len
        per_row = -(-length // PAGE_SIZE)
        tables = (tuple(pages[:per_row]), tuple(pages[per_row : 2 * per_row]))
        allocation = KVAllocation("r", 1, tables, length, PAGE_SIZE)
    return RunRequest("r", prepared.rows, prepared.sampling, allocation, None)


def run_pixels(runner: ModelRunner, run: RunRequest) -> torch.Tensor:
    result = runner.run(run, lambda _: None, lambda: False)
    return torch.from_numpy(result.image)


@pytest.fixture(scope="module")
def paged(checkpoint: Path) -> ModelRunner:
    return make_runner(checkpoint, "paged_scheduler")


@pytest.fixture(scope="module")
def clean_pixels(paged: ModelRunner, checkpoint: Path) -> torch.Tensor:
    return run_pixels(paged, make_run(checkpoint, list(range(NUM_PAGES))))


def test_paged_and_dense_pictures_are_equal(clean_pixels: torch.Tensor, checkpoint: Path) -> None:
    dense = make_runner(checkpoint, "dense_legacy")
    assert torch.equal(run_pixels(dense, make_run(checkpoint, None)), clean_pixels)


def test_paged_and_dense_are_bit_identical_in_bfloat16(checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    traces = []
    for mode, pages in (("dense_legacy", None), ("paged_scheduler", list(range(NUM_PAGES)))):
        path = tmp_path / f"{mode}.safetensors"
        run = replace(make_run(checkpoint, pages), trace_path=str(path))
        run_pixels(make_runner(checkpoint, mode, "bfloat16"), run)
        traces.append(load_file(path))
    for name, tensor in traces[0].items():
        assert torch.equal(tensor, traces[1][name]), name


def test_permuted_page_tables_change_nothing(
    paged: ModelRunner, clean_pixels: torch.Tensor, checkpoint: Path
) -> None:
    order = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(1)).tolist()
    assert torch.equal(run_pixels(paged, make_run(checkpoint, order)), clean_pixels)


def test_nan_in_foreign_pages_and_in_own_slots_never_reaches_the_result(
    checkpoint: Path, clean_pixels: torch.Tensor
) -> None:
    runner = make_runner(checkpoint, "paged_scheduler")
    assert isinstance(runner.backend, PagedKV)
    for tensor in (*runner.backend.store.keys, *runner.backend.store.values):
        tensor.fill_(torch.nan)
    run = make_run(checkpoint, list(range(NUM_PAGES - 1, -1, -1)))
    assert torch.equal(run_pixels(runner, run), clean_pixels)
    assert run.allocation is not None
    owned = {page for table in run.allocation.page_tables for page in table}
    foreign = [page for page in range(NUM_PAGES) if page not in owned]
    for tensor in (*runner.backend.store.keys, *runner.backend.store.values):
        assert torch.isnan(tensor[foreign]).all(), "a foreign page was written"
        assert not torch.isnan(tensor[sorted(owned)]).any(), "an own slot kept its poison"


def test_later_steps_leave_the_prefix_pages_alone(checkpoint: Path) -> None:
    runner = make_runner(checkpoint, "paged_scheduler")
    assert isinstance(runner.backend, PagedKV)
    keys = runner.backend.store.keys
    run = make_run(checkpoint, list(range(NUM_PAGES)))
    layout = run.rows.layout
    seen: list[torch.Tensor] = []

    def snapshot(event: StepEvent) -> None:
        del event
        seen.append(torch.stack([k.reshape(-1, *k.shape[2:])[: layout.kv_len] for k in keys]))

    runner.run(run, snapshot, lambda: False)
    first, later = seen
    prefix, target = slice(0, layout.prefix_len), slice(layout.prefix_len, layout.kv_len)
    assert torch.equal(first[:, prefix], later[:, prefix])
    assert (first[:, target] != later[:, target]).any(dim=(0, 2, 3)).all(), "an unwritten target"


def test_a_paged_request_without_pages_fails_and_never_runs_dense(
    paged: ModelRunner, checkpoint: Path
) -> None:
    with pytest.raises(KVCacheError, match="never run dense"):
        run_pixels(paged, make_run(checkpoint, None))


def test_a_dense_worker_refuses_pages(checkpoint: Path) -> None:
    dense = make_runner(checkpoint, "dense_legacy")
    with pytest.raises(KVCacheError):
        run_pixels(dense, make_run(checkpoint, list(range(NUM_PAGES))))


def test_a_cancelled_request_has_its_pages_scrubbed(checkpoint: Path) -> None:
    runner = make_runner(checkpoint, "paged_scheduler")
    assert isinstance(runner.backend, PagedKV)
    events: list[StepEvent] = []
    run = make_run(checkpoint, list(range(NUM_PAGES)))
    with pytest.raises(CancelledError):
        runner.run(run, events.append, lambda: bool(events))
    assert len(events) == 1
    assert all((k == 0).all() for k in runner.backend.store.keys)
    assert all((v == 0).all() for v in runner.backend.store.values)
