"""When an engine is not ready, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.engine.status import EngineStatus, PageCounts, unready_reason

IDLE = EngineStatus(
    waiting=0,
    admitted=0,
    running=None,
    pages=PageCounts(8, 0, 8, 4),
    page_bytes=1024,
    last_step_age_s=7000.0,
    last_progress_age_s=None,
    num_steps_total=12,
    started=True,
    closing=False,
    stopped=False,
    fault=None,
)
BUSY = replace(IDLE, running="r", last_progress_age_s=5.0)


@pytest.mark.parametrize(
    "status", [IDLE, replace(IDLE, last_step_age_s=None), BUSY, replace(BUSY, waiting=3)]
)
def test_ready_when_idle_however_long_or_when_steps_are_made(status: EngineStatus) -> None:
    assert unready_reason(status, stall_limit_s=120) is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (replace(IDLE, started=False), "loading"),
        (replace(IDLE, closing=True), "shutting down"),
        (replace(IDLE, started=False, closing=True), "shutting down"),
        (replace(BUSY, last_progress_age_s=120.5), "no step for 120 s"),
        (replace(BUSY, running=None, waiting=1, last_progress_age_s=121.0), "no step"),
        (replace(IDLE, stopped=True, fault="SystemExit: 3"), "has stopped: SystemExit: 3"),
    ],
)
def test_not_ready_says_why(status: EngineStatus, words: str) -> None:
    reason = unready_reason(status, stall_limit_s=120)
    assert reason is not None
    assert words in reason
