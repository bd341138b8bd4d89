"""The learning rate by time: a run ends annealed however fast its machine is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A scale from 0 to 1: up over the first steps, flat, then down linearly until the end."""

    num_warmup_steps: int
    flat_share: float
    final_scale: float

    def scale(self, *, step: int, time_share: float) -> float:
        """Return the scale of a step counted from 0; `time_share` is elapsed time over budget."""
        warm = min(1.0, (step + 1) / self.num_warmup_steps)
        falling = (time_share - self.flat_share) / (1 - self.flat_share)
        down = 1 - (1 - self.final_scale) * min(1.0, max(0.0, falling))
        return warm * down
