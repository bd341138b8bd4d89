"""Previews: when they come, what they show, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kit.config.deploy import DeployConfig
from kit.engine.preprocess import Preprocessor
from kit.errors import WorkerError
from kit.messages import RunRequest, RunResult, WorkerConfig
from kit.model.loader import load_vae_decoder
from kit.modelspec.config import load_model_config
from kit.pipeline.postprocess import to_pixels
from kit.request import GenerationRequest, SamplingParams, StepEvent
from kit.worker.runner import ModelRunner

NUM_STEPS = 4


@pytest.fixture(scope="module")
def runner(checkpoint: Path) -> ModelRunner:
    return ModelRunner(
        WorkerConfig(
            model_path=str(checkpoint),
            device="cpu",
            dtype="float32",
            vae_dtype="float32",
            kv_mode="dense_legacy",
            attention_backend="FLASH_ATTN",
            page_size=None,
            num_pages=0,
        )
    )


@pytest.fixture(scope="module")
def run(checkpoint: Path) -> RunRequest:
    sampling = SamplingParams(
        height=256, width=256, num_inference_steps=NUM_STEPS, guidance_scale=1.0, seed=3
    )
    prepared = Preprocessor(checkpoint, DeployConfig()).prepare(
        GenerationRequest("a cat on a sofa", sampling)
    )
    return RunRequest("r", prepared.rows, prepared.sampling, None, None, num_partial_images=2)


def run_all(runner: ModelRunner, run: RunRequest) -> tuple[RunResult, list[StepEvent]]:
    events: list[StepEvent] = []
    return runner.run(run, events.append, lambda: False), events


def test_previews_come_with_their_steps_and_show_the_decoded_estimate(
    runner: ModelRunner, run: RunRequest, checkpoint: Path, tmp_path: Path
) -> None:
    traced = replace(run, trace_path=str(tmp_path / "trace"))
    result, events = run_all(runner, traced)
    assert [event.preview is not None for event in events] == [True, True, False, False]
    trace = load_file(tmp_path / "trace")
    vae = load_vae_decoder(
        checkpoint, load_model_config(checkpoint), device=torch.device("cpu"), dtype=torch.float32
    )
    for event in events[:2]:
        # The worker computes it from the latents after the step; both are the same line.
        step = f"step{event.step}"
        sigma = trace["sigmas"][event.step - 1]
        clean = trace[f"{step}.latents_in"] - sigma * trace[f"{step}.pred_guided"]
        with torch.inference_mode():
            wanted = torch.from_numpy(to_pixels(vae(clean))).int()
        assert event.preview is not None
        assert event.preview.shape == (256, 256, 3)
        assert (torch.from_numpy(event.preview).int() - wanted).abs().max() <= 1
    assert events[0].preview is not None
    assert (events[0].preview != result.image).any()


def test_previews_change_nothing_but_their_own_time(runner: ModelRunner, run: RunRequest) -> None:
    with_previews, _ = run_all(runner, run)
    without, events = run_all(runner, replace(run, num_partial_images=0))
    assert (with_previews.image == without.image).all()
    assert with_previews.tokens_written == without.tokens_written
    assert with_previews.preview_time_s > 0
    assert without.preview_time_s == 0
    assert all(event.preview is None for event in events)
    assert with_previews.peak_memory_bytes > 0


def test_a_broken_picture_is_never_shown(runner: ModelRunner, run: RunRequest) -> None:
    """NaN as guidance makes the latents NaN: the run ends before its first preview."""
    sampling = replace(run.sampling, guidance_scale=float("nan"))
    rows = replace(run.rows, token_ids=run.rows.token_ids * 2)
    events: list[StepEvent] = []
    broken = replace(run, rows=rows, sampling=sampling, num_partial_images=3)
    with pytest.raises(WorkerError, match="non-finite latents after step 1"):
        runner.run(broken, events.append, lambda: False)
    assert events == []
