"""When a worker group last got ahead, and how far its running request is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kit.request import StepEvent

_NUM_RUNS_AVERAGED = 16


@dataclass
class Progress:
    """Times are readings of time.perf_counter. Not locked: its owner is."""

    num_steps_total: int = 0
    last_step: float | None = None
    last_progress: float = 0.0
    event: StepEvent | None = None
    """The last step of the running request, without its preview; None before its first."""

    _run_times: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RUNS_AVERAGED))

    def touch(self) -> None:
        """Something went ahead that is no step: a request came, began or ended."""
        self.last_progress = time.perf_counter()

    def begin(self) -> None:
        """A request begins to run."""
        self.event = None
        self.touch()

    def step(self, event: StepEvent) -> None:
        """The running request made a step."""
        self.event = StepEvent(
            event.request_id, event.step, event.num_steps, event.step_time_s, event.tokens_written
        )
        self.num_steps_total += 1
        self.touch()
        self.last_step = self.last_progress

    def end(self, run_time_s: float | None) -> None:
        """The running request ended; None: without an image, which says nothing about others."""
        self.event = None
        self.touch()
        if run_time_s is not None:
            self._run_times.append(run_time_s)

    @property
    def run_times(self) -> tuple[float, ...]:
        """Seconds of the last images."""
        return tuple(self._run_times)


def mean_run_time_s(groups: Iterable[Progress]) -> float:
    """Mean run time of the last images; 1 s before the first."""
    times = [seconds for progress in groups for seconds in progress.run_times]
    return sum(times) / len(times) if times else 1.0
