"""The engine as its Python API: order, cancelling, refusals, recovery from non-finite latents."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kit.api import GenerationRequest, ImageEngine, SamplingParams, StepEvent, load_config
from kit.config.deploy import DeployConfig
from kit.errors import (
    CancelledError,
    CapacityError,
    InvalidRequestError,
    UnavailableError,
    WorkerError,
)

PAGED = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
QUICK = SamplingParams(height=256, width=256, num_inference_steps=2, seed=1)


def paged_config(checkpoint: Path, **stage: object) -> DeployConfig:
    return load_config(checkpoint, stage_overrides={"0": {**PAGED, **stage}})


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with ImageEngine(checkpoint, paged_config(checkpoint)) as running:
        yield running


def test_a_request_takes_the_checkpoints_defaults_and_names_its_seed(engine: ImageEngine) -> None:
    result = engine.generate(GenerationRequest("a cat"))
    sampling = result.sampling
    assert (sampling.num_inference_steps, sampling.guidance_scale) == (4, 2.5)
    assert (sampling.height, sampling.width, sampling.flow_shift) == (256, 256, 3.0)
    assert result.template == "instruct"
    asked = SamplingParams(seed=sampling.seed)
    again = engine.generate(GenerationRequest("a cat", asked))
    assert (again.image == result.image).all()
    assert again.sampling == sampling


def test_deployment_defaults_beat_the_checkpoints_and_a_request_beats_both(
    checkpoint: Path,
) -> None:
    defaults = {"num_inference_steps": 1, "seed": 7, "height": 128, "width": 512}
    config = paged_config(checkpoint, default_sampling_params=defaults)
    with ImageEngine(checkpoint, config) as engine:
        default = engine.generate(GenerationRequest("a cat")).sampling
        asked = engine.generate(GenerationRequest("a cat", SamplingParams(num_inference_steps=2)))
    assert (default.num_inference_steps, default.seed) == (1, 7)
    assert (default.height, default.width) == (128, 512)
    assert asked.sampling.num_inference_steps == 2
    assert asked.sampling.seed == 7


def test_metrics_say_what_was_written_and_held(engine: ImageEngine) -> None:
    result = engine.generate(GenerationRequest("a cat", QUICK))
    metrics = result.metrics
    assert metrics.num_rows == 2
    first, later = metrics.tokens_written
    assert later == 2 * 257
    prefix = (first - later) // 2
    pages = -(-(prefix + 257) // 32)
    assert metrics.num_pages == 2 * pages
    # 2 (K and V) x 3 layers x 2 kv heads x 32 x 4 bytes per token
    assert metrics.kv_bytes == 2 * pages * 32 * 2 * 3 * 2 * 32 * 4
    assert len(metrics.step_times_s) == 2
    assert metrics.total_time_s >= sum(metrics.step_times_s) + metrics.decode_time_s
    assert engine.snapshot().num_pages_used == 0


def test_one_row_without_guidance(engine: ImageEngine) -> None:
    sampling = SamplingParams(num_inference_steps=1, guidance_scale=1.0)
    result = engine.generate(GenerationRequest("a cat", sampling))
    assert result.metrics.num_rows == 1


def test_steps_are_reported_in_order(engine: ImageEngine) -> None:
    events: list[StepEvent] = []
    engine.generate(GenerationRequest("a cat", QUICK), events.append)
    assert [(event.step, event.num_steps) for event in events] == [(1, 2), (2, 2)]


def test_a_request_equals_its_solo_run_whatever_is_queued_around_it(engine: ImageEngine) -> None:
    requests = [
        GenerationRequest(f"prompt {i}", SamplingParams(num_inference_steps=2, seed=i))
        for i in range(4)
    ]
    solo = [engine.generate(request).image for request in requests]
    handles = [engine.submit(request) for request in requests]
    for handle, image in zip(handles, solo, strict=True):
        assert (handle.future.result().image == image).all()


def test_cancel_a_running_and_a_waiting_request(engine: ImageEngine) -> None:
    stepped = threading.Event()
    long = GenerationRequest("a cat", SamplingParams(num_inference_steps=500))
    running = engine.submit(long, lambda _: stepped.set())
    waiting = engine.submit(long)
    assert stepped.wait(60)
    assert engine.cancel(waiting.request_id)
    with pytest.raises(CancelledError, match="before it ran"):
        waiting.future.result(timeout=5)
    assert engine.cancel(running.request_id)
    with pytest.raises(CancelledError, match="after step"):
        running.future.result(timeout=60)
    assert not engine.cancel(running.request_id)
    snapshot = engine.snapshot()
    assert (snapshot.num_pages_used, snapshot.num_waiting, snapshot.running) == (0, 0, ())


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (SamplingParams(num_inference_steps=0), "num_inference_steps"),
        (SamplingParams(num_inference_steps=True), "num_inference_steps"),
        (SamplingParams(num_inference_steps=1.5), "num_inference_steps"),  # type: ignore[arg-type]
        (SamplingParams(guidance_scale=float("inf")), "guidance_scale"),
        (SamplingParams(guidance_scale=-1), "guidance_scale"),
        (SamplingParams(flow_shift=0.0), "flow_shift"),
        (SamplingParams(seed=2**63), "seed"),
        (SamplingParams(height=256), "width"),
        (SamplingParams(height=0, width=256), "height"),
        (SamplingParams(height=100, width=100), "size"),
    ],
)
def test_bad_sampling_names_its_field(
    engine: ImageEngine, sampling: SamplingParams, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        engine.submit(GenerationRequest("a cat", sampling))
    assert refused.value.param == param


def test_an_id_in_use_is_refused(engine: ImageEngine) -> None:
    request = GenerationRequest("a cat", QUICK, request_id="twice")
    first = engine.submit(request)
    with pytest.raises(InvalidRequestError, match="twice"):
        engine.submit(request)
    first.future.result()


def test_too_large_for_an_empty_pool_is_refused_before_weights_load(checkpoint: Path) -> None:
    engine = ImageEngine(checkpoint, paged_config(checkpoint, kv_cache_memory_bytes=700_000))
    with pytest.raises(CapacityError) as refused:
        engine.submit(GenerationRequest("a cat", QUICK))
    error = refused.value
    assert error.given_bytes <= 700_000 < error.needed_bytes
    assert f"kv_cache_memory_bytes to {error.needed_bytes}" in str(error)
    assert "largest size that fits" in str(error)
    assert engine.snapshot().num_pages_used == 0


def test_a_closed_engine_takes_no_request(checkpoint: Path) -> None:
    engine = ImageEngine(checkpoint, paged_config(checkpoint))
    queued = engine.submit(GenerationRequest("a cat", QUICK))
    engine.close()
    with pytest.raises(UnavailableError, match="shutting down"):
        queued.future.result(timeout=5)
    with pytest.raises(UnavailableError, match="shutting down"):
        engine.submit(GenerationRequest("a cat", QUICK))


@pytest.fixture(scope="module")
def poisoned_checkpoint(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoint whose embedding of `~` is NaN: only prompts with a ~ are affected."""
    folder = tmp_path_factory.mktemp("poisoned") / "checkpoint"
    shutil.copytree(checkpoint, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"]["model.wte.weight"]
    tensors = load_file(shard)
    tensors["model.wte.weight"][tokenizer["model"]["vocab"]["~"]] = torch.nan
    save_file(tensors, shard)
    return folder


@pytest.mark.parametrize("mode", ["dense_legacy", "paged_scheduler"])
def test_non_finite_latents_end_in_an_error_and_leave_no_trace(
    poisoned_checkpoint: Path, mode: str
) -> None:
    stage = PAGED if mode == "paged_scheduler" else {"diffusion_kv_mode": mode}
    config = load_config(poisoned_checkpoint, stage_overrides={"0": stage})
    with ImageEngine(poisoned_checkpoint, config) as engine:
        clean = engine.generate(GenerationRequest("a cat", QUICK)).image
        with pytest.raises(WorkerError, match="non-finite"):
            engine.generate(GenerationRequest("a cat ~", QUICK))
        assert engine.snapshot().num_pages_used == 0
        again = engine.generate(GenerationRequest("a cat", QUICK)).image
    assert (again == clean).all()
