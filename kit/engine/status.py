"""What an engine is doing at one moment: its queue, its pages, its progress."""

from __future__ import annotations

from dataclasses import dataclass

from kit.scheduler.scheduler import SchedulerSnapshot


@dataclass(frozen=True)
class PageCounts:
    """How full the page pool is; all 0 in dense_legacy."""

    total: int
    used: int
    free: int
    peak: int
    """Most pages in use at one moment so far."""


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot; taking one costs microseconds and never waits for a step."""

    waiting: int
    """Requests that hold nothing yet."""

    admitted: int
    """Requests whose pages are booked and that do not run yet."""

    running: str | None
    """Id of the running request."""

    pages: PageCounts
    page_bytes: int
    """Bytes of one page, all layers; 0 in dense_legacy."""

    last_step_age_s: float | None
    """Seconds since a denoising step ended; None before the first."""

    last_progress_age_s: float | None
    """Seconds since a request was taken up, made a step or ended; None while nothing is to do."""

    num_steps_total: int
    """Steps of all requests so far."""

    started: bool
    """Whether the weights are loaded."""

    closing: bool
    """Whether the engine takes no more requests."""

    stopped: bool
    """Whether the engine's thread has ended, by `close` or by a fault."""

    fault: str | None
    """What ended the engine's thread other than `close`."""


def count_pages(seen: SchedulerSnapshot) -> PageCounts:
    """Return the page counts of a Scheduler's snapshot."""
    return PageCounts(
        seen.num_pages, seen.num_pages_used, seen.num_pages_free, seen.peak_pages_used
    )


def unready_reason(status: EngineStatus, stall_limit_s: float) -> str | None:
    """Say why a request sent now would not be served soon; None when it would be."""
    if status.fault is not None:
        return f"the engine has stopped: {status.fault}"
    if status.closing:
        return "shutting down"
    if not status.started:
        return "loading the weights"
    age = status.last_progress_age_s
    if age is not None and age > stall_limit_s:
        return f"no step for {age:.0f} s while a request is to run (limit {stall_limit_s:g} s)"
    return None
