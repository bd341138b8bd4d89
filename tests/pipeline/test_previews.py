"""When previews are due, and that the estimate behind them is x - sigma * v."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.pipeline.schedule import clean_estimate, euler_step, preview_steps


@pytest.mark.parametrize(
    ("num_steps", "num_previews", "steps"),
    [
        (8, 0, set()),
        (8, 1, {4}),
        (8, 3, {2, 4, 6}),
        (50, 3, {12, 25, 37}),
        (4, 3, {1, 2, 3}),
        (3, 3, {1, 2}),
        (2, 3, {1}),
        (1, 3, set()),
    ],
)
def test_previews_are_evenly_spaced(num_steps: int, num_previews: int, steps: set[int]) -> None:
    assert preview_steps(num_steps, num_previews) == steps


@given(st.integers(1, 1000), st.integers(0, 3))
def test_never_more_than_asked_for_and_never_the_last_step(
    num_steps: int, num_previews: int
) -> None:
    steps = preview_steps(num_steps, num_previews)
    assert len(steps) == min(num_previews, num_steps - 1)
    assert all(0 < step < num_steps for step in steps)


def test_the_estimate_is_where_straight_steps_would_end() -> None:
    """Held constant, the velocity leads to the same latents in one step and in many."""
    generator = torch.Generator().manual_seed(0)
    latents, velocity = torch.randn(2, 1, 4, 3, 5, generator=generator)
    sigmas = torch.tensor([0.9, 0.5, 0.2, 0.0])
    walked = latents
    for sigma, following in pairwise(sigmas):
        walked = euler_step(walked, velocity, sigma, following)
    torch.testing.assert_close(clean_estimate(latents, velocity, sigmas[0]), walked)
