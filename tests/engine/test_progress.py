"""Progress of an engine: ages, means, and what keeping it costs a step."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np
import pytest

from kit.engine.progress import Progress, mean_run_time_s
from kit.request import StepEvent
from kit.telemetry.metrics import EngineMetrics

EVENT = StepEvent("r", step=1, num_steps=4, step_time_s=0.1, tokens_written=514)


def test_the_mean_is_over_the_last_images_only() -> None:
    progress = Progress()
    assert mean_run_time_s([progress]) == 1.0
    progress.end(None)
    assert mean_run_time_s([progress]) == 1.0, "a request without an image says nothing"
    for seconds in (100.0, *[2.0] * 15):
        progress.end(seconds)
    assert mean_run_time_s([progress]) == pytest.approx((100 + 15 * 2) / 16)
    progress.end(2.0)
    assert mean_run_time_s([progress]) == 2.0
    other = Progress()
    assert mean_run_time_s([progress, other]) == 2.0
    for _ in range(16):
        other.end(4.0)
    assert mean_run_time_s([progress, other]) == 3.0


def test_a_step_counts_and_its_picture_is_not_kept() -> None:
    progress = Progress()
    assert progress.last_step is None
    progress.step(replace(EVENT, preview=np.zeros((2, 2, 3), np.uint8)))
    assert progress.event == EVENT
    assert progress.num_steps_total == 1
    assert progress.last_step == progress.last_progress
    progress.end(0.5)
    assert progress.event is None


def test_bookkeeping_costs_a_step_microseconds() -> None:
    progress, metrics = Progress(), EngineMetrics()
    costs = []
    for _ in range(50):
        # Time of this thread alone: a busy machine does not count.
        started = time.thread_time()
        for _ in range(100):
            progress.step(EVENT)
            metrics.count_step(0.1)
        costs.append((time.thread_time() - started) / 100)
    assert statistics.median(costs) < 100e-6
