"""Schedule, guidance, noise and pixels against the reference's numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from golden_cases import CASE_NAMES, load_case
from safetensors.torch import load_file

from kit.engine.preprocess import num_rows
from kit.pipeline.guidance import guidance_token_value, guide
from kit.pipeline.noise import draw_noise, seed_generator
from kit.pipeline.postprocess import to_pixels
from kit.pipeline.schedule import euler_step, flow_sigmas, flow_timesteps


def test_schedules_equal_the_references(tables: dict[str, Any]) -> None:
    assert len(tables["schedules"]) == 9
    for name, wanted in tables["schedules"].items():
        steps, shift = name.removeprefix("steps").split("_shift")
        sigmas = flow_sigmas(int(steps), float(shift))
        torch.testing.assert_close(sigmas, torch.tensor(wanted["sigmas"]), atol=1e-7, rtol=0)
        timesteps = torch.tensor(wanted["timesteps"])
        torch.testing.assert_close(flow_timesteps(sigmas), timesteps, atol=1e-4, rtol=0)


def test_the_schedule_is_not_the_one_that_shifts_twice() -> None:
    # Of diffusers' FlowMatchEulerDiscreteScheduler at shift 3, 4 steps.
    other = torch.tensor([1, 0.8577, 0.6022, 0.0089, 0])
    assert (flow_sigmas(4, 3.0) - other).abs().max() > 0.1


@pytest.mark.parametrize("name", CASE_NAMES)
def test_noise_of_a_seed_is_the_references(name: str) -> None:
    case = load_case(name)
    wanted = load_file(case.tensors_path)["noise_bf16"]  # [images, C, h, w]
    seeds = case.inputs["seed"]
    for seed, noise in zip(seeds if isinstance(seeds, list) else [seeds], wanted, strict=True):
        grid = (noise.shape[1], noise.shape[2])
        assert torch.equal(draw_noise(seed_generator(seed), 8, grid)[0], noise)
        assert not torch.equal(draw_noise(seed_generator(seed + 1), 8, grid)[0], noise)


def test_guidance_moves_away_from_the_unconditional_row() -> None:
    rows = torch.randn(2, 3, 4, 5)
    seen = guide(rows, torch.tensor(5.0))
    torch.testing.assert_close(seen[0], rows[1] + 5 * (rows[0] - rows[1]))
    assert torch.equal(guide(rows[:1], torch.tensor(5.0)), rows[:1])


@pytest.mark.parametrize(("scale", "rows"), [(0.0, 1), (1.0, 1), (1.0001, 2), (5.0, 2)])
def test_guidance_above_one_needs_two_rows(scale: float, rows: int) -> None:
    assert num_rows(scale, cfg_distilled=False) == rows
    assert num_rows(scale, cfg_distilled=True) == 1


def test_the_guidance_token_is_rounded_to_bfloat16() -> None:
    assert [guidance_token_value(g) for g in (2.5, 5.0, 1.0)] == [2496.0, 4992.0, 1000.0]


def test_an_euler_step_reaches_the_data_from_the_true_velocity() -> None:
    data, noise = torch.randn(1, 2, 3, 3), torch.randn(1, 2, 3, 3)
    sigmas, latents = flow_sigmas(5, 3.0), noise
    for now, then in pairwise(sigmas):
        latents = euler_step(latents, noise - data, now, then)
    torch.testing.assert_close(latents, data, atol=1e-5, rtol=0)


def test_pixels_are_rounded_and_clamped() -> None:
    decoded = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 0.00392]).view(1, 1, 1, 6).expand(1, 3, 1, 6)
    assert to_pixels(decoded)[0, :, 0].tolist() == [0, 0, 128, 255, 255, 128]
