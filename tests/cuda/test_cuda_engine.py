"""The engine on a card: modes, graphs, faults; run where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, GOLDEN_CHECKPOINT
from kit.config.deploy import KVMode
from kit.doctor.golden import SHIPPED_CASE, run_golden
from kit.doctor.segments import RELATIVE_LIMIT, check_segments
from kit.engine.engine import ImageEngine
from kit.errors import CancelledError, ConfigError, UnsupportedError
from kit.modelspec.config import load_model_config
from kit.modelspec.deployment import load_config
from kit.request import GenerationRequest, SamplingParams, StepEvent

pytestmark = pytest.mark.cuda

MODES: dict[str, dict[str, Any]] = {
    "dense": {"diffusion_kv_mode": "dense_legacy"},
    "paged": {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2},
}


@contextmanager
def engine(mode: str, *, dtype: str = "bfloat16", **stage: Any) -> Iterator[ImageEngine]:
    checkpoint = DEFAULT_CHECKPOINT
    config = load_config(
        checkpoint,
        stage_overrides={"0": {"devices": "0"} | MODES[mode] | stage},
        flags={"dtype": dtype},
    )
    with ImageEngine(checkpoint, config) as started:
        yield started


def request(size: tuple[int, int] = (256, 256), *, seed: int = 1, **more: Any) -> GenerationRequest:
    sampling = SamplingParams(height=size[0], width=size[1], num_inference_steps=20, seed=seed)
    return GenerationRequest("A red ceramic vase on a wooden table", sampling, **more)


def traced(started: ImageEngine, folder: Path, **changes: Any) -> Mapping[str, torch.Tensor]:
    path = folder / "trace.safetensors"
    started.generate(request(trace_path=str(path), **changes))
    return load_file(path)


@pytest.mark.parametrize("page_size", [192, 384])
@pytest.mark.parametrize("eager", [True, False])
def test_pages_and_rows_give_the_same_bits_in_every_step(
    tmp_path: Path, page_size: int, eager: bool
) -> None:
    with engine("dense", enforce_eager=eager) as dense:
        wanted = traced(dense, tmp_path)
        assert dense.info.kernel == "flash_attn_3"
    with engine("paged", enforce_eager=eager, diffusion_kv_page_size=page_size) as paged:
        seen = traced(paged, tmp_path)
        assert (paged.info.kernel, paged.info.page_size) == ("flash_attn_3", page_size)
    assert seen.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(seen[name], tensor), name


def test_a_replayed_step_has_the_bits_of_an_eager_one(tmp_path: Path) -> None:
    with engine("paged", enforce_eager=True) as eager:
        wanted = [traced(eager, tmp_path, size=size) for size in ((256, 256), (192, 320))]
    with engine("paged", enforce_eager=False) as replayed:
        # Sizes take turns, so every graph is used again after another one ran.
        for size, expected in (((256, 256), wanted[0]), ((192, 320), wanted[1])) * 2:
            seen = traced(replayed, tmp_path, size=size)
            for name, tensor in expected.items():
                assert torch.equal(seen[name], tensor), (size, name)


@pytest.mark.parametrize("mode", MODES)
def test_a_second_request_of_a_shape_captures_nothing(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kit")
    with engine(mode, enforce_eager=False) as started:
        started.generate(request())
        caplog.clear()
        # Other prompt lengths and other pages, the same shape.
        for prompt in ("A blue fish", "Three stars above a house at night, seen from far away"):
            started.generate(GenerationRequest(prompt, request().sampling))
        assert not [r for r in caplog.records if "captured a graph" in r.getMessage()]
        started.generate(request((192, 320)))
        assert len([r for r in caplog.records if "captured a graph" in r.getMessage()]) == 1


def test_golden_case_in_float32() -> None:
    report = run_golden(
        GOLDEN_CHECKPOINT,
        "dense_legacy",
        SHIPPED_CASE,
        stage={"devices": "0", "diffusion_attention_backend": "TORCH_SDPA"},
    )
    assert report.ids_equal
    assert max(step.prediction for step in report.steps) < 1e-3
    assert max(step.latents for step in report.steps) < 1e-3
    assert report.max_pixel_difference <= 1


@pytest.mark.parametrize(("mode", "page_size"), [("dense_legacy", None), ("paged_scheduler", 192)])
def test_segments_against_the_oracle(mode: KVMode, page_size: int | None) -> None:
    model = load_model_config(DEFAULT_CHECKPOINT)
    errors = check_segments(model, mode, page_size, device="cuda", dtype=torch.bfloat16)
    assert len(errors) == 6
    assert all(error.relative_error <= RELATIVE_LIMIT for error in errors), errors


def test_the_picture_is_that_of_the_cpu() -> None:
    with engine("paged") as card:
        seen = card.generate(request()).image
    checkpoint = DEFAULT_CHECKPOINT
    with ImageEngine(
        checkpoint, load_config(checkpoint, stage_overrides={"0": {"devices": "cpu"}})
    ) as cpu:
        wanted = cpu.generate(request()).image
    error = ((torch.tensor(seen).float() - torch.tensor(wanted).float()) ** 2).mean()
    assert 10 * torch.log10(255**2 / error) > 30


OFFLOAD = [
    {"enable_layerwise_offload": True},
    {"enable_cpu_offload": True},
    {"enable_layerwise_offload": True, "enable_cpu_offload": True},
]


@pytest.mark.parametrize("offload", OFFLOAD, ids=lambda stage: "+".join(stage))
def test_offload_changes_no_bit(tmp_path: Path, offload: dict[str, Any]) -> None:
    with engine("dense") as resident:
        wanted = traced(resident, tmp_path)
        all_bytes, host_bytes = resident.info.weight_bytes, resident.info.host_weight_bytes
        assert host_bytes == 0
    with engine("dense", **offload) as waiting:
        for _ in range(2):  # the second pass finds the first layer on the card already
            seen = traced(waiting, tmp_path)
            assert seen.keys() == wanted.keys()
            for name, tensor in wanted.items():
                assert torch.equal(seen[name], tensor), name
        info = waiting.info
        # Two of seven layers have places on the card.
        assert info.host_weight_bytes > 0
        assert info.weight_bytes < all_bytes <= info.weight_bytes + info.host_weight_bytes


def test_a_cancelled_request_leaves_streamed_layers_in_order(tmp_path: Path) -> None:
    with engine("dense", enable_layerwise_offload=True) as waiting:
        wanted = traced(waiting, tmp_path)

        def cancel(event: StepEvent) -> None:
            waiting.cancel(event.request_id)

        handle = waiting.submit(request(), cancel)
        with pytest.raises(CancelledError):
            handle.future.result()
        seen = traced(waiting, tmp_path)
        assert all(torch.equal(seen[name], tensor) for name, tensor in wanted.items())


def test_memory_at_rest_stays_flat() -> None:
    sizes = ((256, 256), (192, 320), (320, 192), (128, 384), (512, 128))
    with engine("paged", enforce_eager=True) as started:
        for size in sizes:
            started.generate(request(size))
        at_rest = torch.cuda.memory_allocated()
        for turn in range(10):
            for size in sizes:
                started.generate(request(size, seed=turn))
        assert torch.cuda.memory_allocated() == at_rest


@pytest.mark.parametrize(
    ("mode", "stage", "dtype", "error", "message"),
    [
        ("paged", {"diffusion_kv_page_size": 176}, "bfloat16", ConfigError, "multiples of 192"),
        ("paged", {}, "float32", ConfigError, "takes bfloat16"),
        (
            "dense",
            {"enforce_eager": False, "diffusion_attention_backend": "TORCH_SDPA"},
            "float32",
            ConfigError,
            "graphs need dtype bfloat16",
        ),
        (
            "paged",
            {"kv_cache_memory_bytes": 1000},
            "bfloat16",
            ConfigError,
            "kv_cache_memory_bytes",
        ),
        ("paged", {"kv_cache_memory_bytes": 1 << 40}, "bfloat16", ConfigError, "would not fit"),
        ("paged", {"devices": "9"}, "bfloat16", UnsupportedError, "no accelerator 9"),
        (
            "dense",
            {"enforce_eager": False, "enable_layerwise_offload": True},
            "bfloat16",
            ConfigError,
            "graphs hold the addresses of weights",
        ),
    ],
)
def test_refused_at_start(
    mode: str, stage: dict[str, Any], dtype: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), engine(mode, dtype=dtype, **stage):
        pass
