"""`kit generate`, `kit config` and start-up refusals, as real processes."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import load_case
from kit_command import run_kit
from PIL import Image
from safetensors.torch import load_file

from bench.picture_analysis import find_background, find_regions
from kit.checkpoint.shipped import GOLDEN_CHECKPOINT


def kit(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command on the golden checkpoint, unless it names another."""
    if command in ("generate", "config") and "--model" not in arguments:
        arguments = (*arguments, "--model", str(GOLDEN_CHECKPOINT))
    return run_kit(command, *arguments, cwd=cwd)


def write_overlay(folder: Path, stage: dict[str, Any]) -> str:
    path = folder / "overlay.yaml"
    path.write_text(
        json.dumps({"pipeline": "hunyuan_image3_dit", "stages": [{"stage_id": 0, **stage}]})
    )
    return str(path)


PAGED = {
    "max_num_seqs": 1,
    "enforce_eager": True,
    "diffusion_attention_backend": "FLASH_ATTN",
    "step_execution": False,
    "engine_extras": {
        "diffusion_kv_mode": "paged_scheduler",
        "diffusion_kv_max_rows_per_request": 2,
    },
}


@pytest.mark.parametrize("mode", ["dense", "paged"])
def test_generate_reproduces_a_recorded_case(mode: str, tmp_path: Path, checkpoint: Path) -> None:
    inputs = load_case("t2i_instruct_cot_portrait").inputs
    height, width = inputs["image_size_hw"]
    command = ["generate", inputs["prompt"], "-o", "out.png", "--model", str(checkpoint)]
    command += ["--size", f"{width}x{height}", "--steps", str(inputs["steps"])]
    command += ["--guidance", str(inputs["guidance_scale"]), "--seed", str(inputs["seed"])]
    command += ["--flow-shift", "3.0", "--dtype", "float32", "--template", "instruct"]
    command += ["--system-prompt", inputs["system_prompt"], "--cot", inputs["cot_text"]]
    command += ["--trace", "trace.safetensors"]
    if mode == "paged":
        command += ["--deploy-config", write_overlay(tmp_path, PAGED)]
    done = kit(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = load_file(load_case("t2i_instruct_cot_portrait").tensors_path)
    seen = load_file(tmp_path / "trace.safetensors")
    assert torch.equal(seen["input_ids"], wanted["input_ids"])
    assert (seen["step4.pred"] - wanted["step4.pred"]).abs().max() <= 1e-4
    image = Image.open(tmp_path / "out.png")
    assert image.size == (width, height)
    assert torch.equal(
        torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8),
        seen["image_u8"].flatten(),
    )
    assert ("paged native path active" in done.stderr) == (mode == "paged")
    assert "seed 1234" in done.stdout


# field in the message, stage settings; each is one clear error before any weight is read
REFUSED_AT_START: list[tuple[str, dict[str, Any]]] = [
    ("diffusion_kv_max_rows_per_request", {"diffusion_kv_mode": "paged_scheduler"}),
    ("diffusion_attention_backend", {**PAGED, "diffusion_attention_backend": "TORCH_SDPA"}),
    ("step_execution", {**PAGED, "step_execution": True}),
    ("ring_degree", {**PAGED, "parallel_config": {"ring_degree": 2}}),
    ("allgather_degree", {**PAGED, "parallel_config": {"allgather_degree": 2}}),
    ("diffusion_kv_mode", {"diffusion_kv_mode": "ar_diffusion_kv"}),
    ("enable_cpu_offload", {**PAGED, "enable_cpu_offload": True}),
    ("diffusion_kv_cache_dtype", {**PAGED, "diffusion_kv_cache_dtype": "fp8"}),
]


@pytest.mark.parametrize(
    ("field", "stage"), REFUSED_AT_START, ids=lambda x: x if isinstance(x, str) else ""
)
def test_start_is_refused_in_time_with_exit_2(
    field: str, stage: dict[str, Any], tmp_path: Path
) -> None:
    started = time.perf_counter()
    done = kit("serve", "--deploy-config", write_overlay(tmp_path, stage), cwd=tmp_path)
    elapsed = time.perf_counter() - started
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert field in done.stderr
    assert "overlay.yaml" in done.stderr
    assert elapsed < 6  # the bar is 2 s; noisy machines get three times that


def test_dry_run_and_config_print_the_deployment_and_load_nothing(tmp_path: Path) -> None:
    overlay = write_overlay(tmp_path, PAGED)
    for command in (["config"], ["generate", "a cat", "--dry-run"], ["serve", "--dry-run"]):
        done = kit(*command, "--deploy-config", overlay, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "paged_scheduler" in done.stdout
        assert "overlay.yaml" in done.stdout
        assert "# start: device cpu, dtype float32" in done.stdout
    assert not (tmp_path / "image.png").exists()


def test_a_deployment_for_other_machines_is_shown_with_why_a_start_is_refused_here(
    tmp_path: Path,
) -> None:
    stage = {"devices": "0,1", "parallel_config": {"tensor_parallel_size": 2}}
    overlay = write_overlay(tmp_path, stage)
    for command in (["config"], ["serve", "--dry-run"]):
        done = kit(*command, "--deploy-config", overlay, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "tensor_parallel_size: 2" in done.stdout
        assert "# a start is refused here: " in done.stdout
    assert kit("serve", "--deploy-config", overlay, cwd=tmp_path).returncode == 2


def test_a_dry_run_refuses_a_bad_request(tmp_path: Path) -> None:
    done = kit("generate", "a cat", "--size", "300x300", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "300x300" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "  "], "prompt"),
        (["generate", "a cat", "--size", "250x256"], "256x256"),
        (["generate", "a cat", "--size", "256x256", "--height", "256"], "--size"),
        (["generate", "a cat", "--height", "256"], "width"),
        (["generate", "a cat", "--steps", "0"], "num_inference_steps"),
        (["generate", "a cat", "--guidance", "1e999"], "guidance_scale"),
        (["generate", "a cat", "--guidance", "nan"], "--guidance"),
        (["generate", "a cat", "--seed", "-1"], "seed"),
        (["generate", "a cat", "--cot", "x", "--template", "pretrain"], "cot_text"),
        (["generate", "a cat", "-o", "nowhere/out.png"], "--output"),
        (["generate", "a cat", "-o", "out.gif"], "--output"),
        (["generate", "a cat", "--quality", "50"], "--quality"),
        (["generate", "a cat", "-o", "out.jpg", "--quality", "101"], "--quality"),
        (["generate", "a cat", "--model", "nowhere"], "config.json"),
        (["serve", "some/model"], "MODEL"),
    ],
)
def test_bad_requests_are_refused_before_weights_load(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = kit(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "loaded in" not in done.stderr
    assert "Traceback" not in done.stderr


def test_guidance_with_a_row_limit_of_one_names_the_limit(tmp_path: Path) -> None:
    stage = {
        **PAGED,
        "engine_extras": {
            "diffusion_kv_mode": "paged_scheduler",
            "diffusion_kv_max_rows_per_request": 1,
        },
    }
    overlay = write_overlay(tmp_path, stage)
    refused = kit("generate", "a cat", "--deploy-config", overlay, cwd=tmp_path)
    assert refused.returncode == 2
    assert "diffusion_kv_max_rows_per_request" in refused.stderr
    one_row = kit(
        "generate",
        "a cat",
        "--guidance",
        "1",
        "--steps",
        "1",
        "--deploy-config",
        overlay,
        cwd=tmp_path,
    )
    assert one_row.returncode == 0, one_row.stderr


def test_a_pool_too_small_names_needed_given_and_the_largest_size(tmp_path: Path) -> None:
    overlay = write_overlay(tmp_path, PAGED)
    small = ["--deploy-config", overlay, "--kv-cache-memory-bytes", "700000"]
    done = kit("generate", "a cat", "--size", "256x256", *small, cwd=tmp_path)
    assert done.returncode == 2
    assert "loaded in" not in done.stderr
    assert "largest size that fits is" in done.stderr
    size = done.stderr.split("largest size that fits is ")[1].split(";")[0]
    again = kit("generate", "a cat", "--size", size, "--steps", "1", *small, cwd=tmp_path)
    assert again.returncode == 0, again.stderr


def test_the_default_checkpoint_draws_what_the_prompt_says(tmp_path: Path) -> None:
    """No --model: a red thing on the wooden table, the same pixels paged and dense."""
    prompt = "A red ceramic vase on a wooden table"
    for name, more in (
        ("dense.png", []),
        ("paged.png", ["--deploy-config", "hunyuan_image3_paged"]),
    ):
        done = run_kit("generate", prompt, "-o", name, "--seed", "7", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "256x256" in done.stdout
    dense, paged = (np.asarray(Image.open(tmp_path / f"{n}.png")) for n in ("dense", "paged"))
    assert (dense == paged).all()
    ground, _ = find_background(dense)
    assert ground == "table"
    regions = find_regions(dense, ground)
    assert [region.colour for region in regions] == ["red"]
