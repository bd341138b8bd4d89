"""When an engine is not ready, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.engine.status import EngineStatus, GroupStatus, PageCounts, unready_reason

GROUP = GroupStatus(
    index=0,
    state="ready",
    running=(),
    admitted=0,
    pages=PageCounts(8, 0, 8, 4, 0),
    num_restarts=0,
    fault=None,
    last_progress_age_s=None,
)
RUNS = replace(GROUP, running=("r",), last_progress_age_s=5.0)
STANDS = replace(RUNS, last_progress_age_s=120.5)
LOST = replace(GROUP, state="restarting", fault="rank 1 has ended by signal 9")
IDLE = EngineStatus(
    waiting=0,
    groups=(GROUP,),
    page_bytes=1024,
    last_step_age_s=7000.0,
    num_steps_total=12,
    started=True,
    closing=False,
    stopped=False,
    fault=None,
)
BUSY = replace(IDLE, groups=(RUNS,))


@pytest.mark.parametrize(
    "status",
    [
        IDLE,
        replace(IDLE, last_step_age_s=None),
        BUSY,
        replace(BUSY, waiting=3),
        replace(IDLE, groups=(STANDS, GROUP)),
        replace(IDLE, groups=(STANDS, RUNS)),
        replace(IDLE, groups=(LOST, RUNS)),
    ],
)
def test_ready_when_idle_however_long_or_when_steps_are_made(status: EngineStatus) -> None:
    assert unready_reason(status, stall_limit_s=120) is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (replace(IDLE, started=False), "loading"),
        (replace(IDLE, closing=True), "shutting down"),
        (replace(IDLE, started=False, closing=True), "shutting down"),
        (replace(IDLE, groups=(STANDS,)), "no step for 120 s"),
        (replace(IDLE, waiting=1, groups=(replace(STANDS, running=()),)), "no step"),
        (replace(IDLE, groups=(STANDS, LOST)), "no step for 120 s"),
        (replace(IDLE, groups=(LOST, LOST)), "no worker group is ready"),
        (replace(IDLE, groups=(LOST,)), "by signal 9"),
        (replace(IDLE, stopped=True, fault="SystemExit: 3"), "has stopped: SystemExit: 3"),
    ],
)
def test_not_ready_says_why(status: EngineStatus, words: str) -> None:
    reason = unready_reason(status, stall_limit_s=120)
    assert reason is not None
    assert words in reason
