"""ModelRunners of one worker group: what each holds, and that they end a request together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from ranks import Processes
from torch.utils._python_dispatch import TorchDispatchMode

from kit.attention.paged import PagedKV
from kit.config.deploy import DeployConfig
from kit.engine.preprocess import Preprocessor
from kit.errors import CancelledError, WorkerError
from kit.kv.allocation import KVAllocation
from kit.messages import RunRequest, RunResult, WorkerConfig, WorkerInfo
from kit.modelspec.config import load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.footprint import (
    Split,
    kv_token_bytes,
    pool_bytes,
    weight_bytes,
    weight_bytes_by_part,
)
from kit.modelspec.tensors import expected_tensors
from kit.parallel.topology import ONE_RANK, Topology
from kit.request import GenerationRequest, SamplingParams
from kit.worker.runner import ModelRunner

PAGE_SIZE, NUM_PAGES = 16, 40
TOPOLOGIES = {
    "TP2": (Topology(tensor=2), False),
    "EP2": (Topology(tensor=2), True),
    "CFG2": (Topology(cfg=2), False),
}


@dataclass(frozen=True)
class Seen:
    """What came out of one runner."""

    info: WorkerInfo
    result: RunResult
    cancelled: str
    clean_after_cancel: bool
    not_finite: str
    out_of_memory: str
    again: RunResult


def make_runner(
    checkpoint: Path,
    topology: Topology = ONE_RANK,
    rank: int = 0,
    rendezvous: str | None = None,
    whole_experts: bool = False,
) -> ModelRunner:
    return ModelRunner(
        WorkerConfig(
            model_path=str(checkpoint),
            device="cpu",
            dtype="float32",
            vae_dtype="float32",
            kv_mode="paged_scheduler",
            attention_backend="FLASH_ATTN",
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            whole_experts=whole_experts,
            topology=topology,
            rank=rank,
            rendezvous=rendezvous,
        )
    )


def make_run(checkpoint: Path, num_tables: int, steps: int = 3) -> RunRequest:
    """Two rows, on as many ranks as leave `num_tables` rows to each."""
    sampling = SamplingParams(height=256, width=256, num_inference_steps=steps, seed=3)
    prepared = Preprocessor(checkpoint, DeployConfig()).prepare(
        GenerationRequest("a cat", sampling)
    )
    length = prepared.rows.layout.kv_len
    per_row = -(-length // PAGE_SIZE)
    tables = tuple(tuple(range(row * per_row, (row + 1) * per_row)) for row in range(num_tables))
    allocation = KVAllocation("r", 1, tables, length, PAGE_SIZE)
    return RunRequest("r", prepared.rows, prepared.sampling, allocation, None)


def serve(rank: int, rendezvous: str, checkpoint: Path, name: str) -> Seen:
    """Requests that end in every way, in one order on all ranks."""
    topology, whole_experts = TOPOLOGIES[name]
    runner = make_runner(checkpoint, topology, rank, rendezvous, whole_experts)
    run = make_run(checkpoint, 2 // topology.cfg)
    result = go(runner, run)
    steps: list[object] = []
    cancelled = message_of(
        CancelledError,
        # Rank 1 alone has heard of it.
        lambda: runner.run(run, steps.append, lambda: rank == 1 and len(steps) == 1),
    )
    assert isinstance(runner.backend, PagedKV)
    keys = runner.backend.store.keys
    clean = all(bool((tensor == 0).all()) for tensor in keys)
    not_finite = message_of(WorkerError, lambda: run_with_nan(runner, rank, checkpoint, topology))

    def run_out_of_memory() -> bool:
        raise torch.OutOfMemoryError("no memory is left")

    out = message_of(
        torch.OutOfMemoryError, lambda: runner.run(run, steps.append, run_out_of_memory)
    )
    again = go(runner, run)
    runner.close()
    return Seen(runner.info, result, cancelled, clean, not_finite, out, again)


def run_with_nan(runner: ModelRunner, rank: int, checkpoint: Path, topology: Topology) -> RunResult:
    """Spoil what rank 1 alone computes last: its latents are not finite, the leader's are."""
    weight = runner._model.time_embed_2.get_parameter("mlp.0.weight")
    kept = weight.detach().clone()
    if rank == 1:
        weight.data.fill_(torch.nan)
    try:
        return go(runner, make_run(checkpoint, 2 // topology.cfg, steps=1))
    finally:
        weight.data.copy_(kept)


def go(runner: ModelRunner, run: RunRequest) -> RunResult:
    return runner.run(run, lambda _: None, lambda: False)


def message_of(kind: type[BaseException], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", ["TP2", pytest.param("EP2", marks=pytest.mark.long), "CFG2"])
def test_a_group_serves_and_ends_its_requests_together(
    name: str, two: Processes, tmp_path: Path, checkpoint: Path
) -> None:
    ranks: list[Seen] = two.meet(tmp_path, serve, checkpoint, name)
    topology, whole_experts = TOPOLOGIES[name]
    alone = make_runner(checkpoint)
    wanted = go(alone, make_run(checkpoint, 2))
    for seen in ranks:
        assert "after step 1" in seen.cancelled
        assert seen.clean_after_cancel
        assert "non-finite" in seen.not_finite
        assert "no memory is left" in seen.out_of_memory
        assert seen.result.tokens_written == wanted.tokens_written
        check_bytes(seen.info, alone.info, checkpoint, topology, whole_experts)
    leader, other = ranks
    difference = leader.result.image.astype(int) - wanted.image.astype(int)
    assert abs(difference).max() <= 1
    assert (leader.result.image == leader.again.image).all()
    assert other.result.image.shape == (0, 0, 3)


def check_bytes(
    info: WorkerInfo, alone: WorkerInfo, checkpoint: Path, topology: Topology, whole: bool
) -> None:
    """A rank holds, and reads, what its split says."""
    config = load_model_config(checkpoint)
    split = Split(topology.tensor, topology.ulysses, topology.cfg, whole)
    assert info.weight_bytes == weight_bytes(config, 4, split=split)
    assert info.pool_bytes == pool_bytes(NUM_PAGES, PAGE_SIZE * kv_token_bytes(config, 4, split))
    assert info.read_time_s > 0
    files = CheckpointFiles.open(checkpoint)
    needed = {name: spec for name, spec in expected_tensors(config).items() if spec.needed_for_t2i}
    assert alone.bytes_read == sum(files.tensors[name].num_bytes for name in needed)
    # As stored: bfloat16 but for the router and the decoder.
    shared = {
        part: size - weight_bytes_by_part(config, 2, split=split)[part]
        for part, size in weight_bytes_by_part(config, 2).items()
    }
    assert alone.bytes_read - info.bytes_read == sum(shared.values())
    assert (sum(shared.values()) > 0) == (topology.tensor > 1)


class NoMemory(TorchDispatchMode):
    """Every operation finds the device full."""

    def __torch_dispatch__(self, *_: object, **__: object) -> NoReturn:
        raise torch.OutOfMemoryError("no memory is left")


def test_a_rank_out_of_memory_alone_says_what_to_lower(checkpoint: Path) -> None:
    runner, run = make_runner(checkpoint), make_run(checkpoint, 2)
    full = NoMemory()  # type: ignore[no-untyped-call]
    with full, pytest.raises(WorkerError, match="lower kv_cache_memory_bytes"):
        runner.run(run, lambda _: None, lambda: False)


def test_a_single_row_runs_on_both_cfg_ranks(
    two: Processes, tmp_path: Path, checkpoint: Path
) -> None:
    ranks: list[RunResult] = two.meet(tmp_path, serve_one_row, checkpoint)
    alone = make_runner(checkpoint)
    difference = ranks[0].image.astype(int) - go(alone, one_row(checkpoint)).image.astype(int)
    assert abs(difference).max() <= 1


def serve_one_row(rank: int, rendezvous: str, checkpoint: Path) -> RunResult:
    runner = make_runner(checkpoint, Topology(cfg=2), rank, rendezvous)
    result = go(runner, one_row(checkpoint))
    runner.close()
    return result


def one_row(checkpoint: Path) -> RunRequest:
    run = make_run(checkpoint, 1)
    rows = replace(run.rows, token_ids=run.rows.token_ids[:1])
    return replace(run, rows=rows, sampling=replace(run.sampling, guidance_scale=1.0))
