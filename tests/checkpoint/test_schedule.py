"""The learning rate over a run."""

from __future__ import annotations

import pytest

from kit.checkpoint.schedule import Schedule

SCHEDULE = Schedule(num_warmup_steps=10, flat_share=0.5, final_scale=0.1)


@pytest.mark.parametrize(
    ("step", "time_share", "scale"),
    [
        (0, 0.0, 0.1),
        (9, 0.0, 1.0),
        (100, 0.5, 1.0),
        (100, 0.75, 0.55),
        (100, 1.0, 0.1),
        (100, 1.3, 0.1),
        (4, 0.75, 0.275),
    ],
)
def test_scale(step: int, time_share: float, scale: float) -> None:
    assert SCHEDULE.scale(step=step, time_share=time_share) == pytest.approx(scale)
