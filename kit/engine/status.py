"""What an engine is doing at one moment: its queue, its groups, their pages, its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kit.scheduler.scheduler import GroupSnapshot, SchedulerSnapshot

GroupState = Literal["starting", "ready", "restarting", "down"]
"""starting: its weights load for the first time; restarting: it was lost and loads again; down: it
was lost too often, and is given up."""


@dataclass(frozen=True)
class PageCounts:
    """How full a page pool is, or all of them; all 0 in dense_legacy."""

    total: int
    used: int
    """By requests; one that several use counts once."""

    free: int
    """That can be handed out, cached ones included."""

    peak: int
    """Most pages in use at one moment so far; of several groups the sum of each one's most."""

    cached: int
    """Free pages that hold a prefix which later requests find, until the room is needed."""


@dataclass(frozen=True)
class GroupStatus:
    """One worker group."""

    index: int
    state: GroupState
    running: tuple[str, ...]
    """Ids of the running requests: one at most, unless they are scheduled step by step."""

    admitted: int
    """Requests whose pages are booked here and that do not run yet."""

    pages: PageCounts
    num_restarts: int
    fault: str | None
    """Why it was lost the last time."""

    last_progress_age_s: float | None
    """Seconds since its request was taken up or made a step; None while it has none."""


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot; taking one costs microseconds and never waits for a step."""

    waiting: int
    """Requests that hold nothing yet."""

    groups: tuple[GroupStatus, ...]
    page_bytes: int
    """Bytes of one page on a rank, all layers; 0 in dense_legacy."""

    last_step_age_s: float | None
    """Seconds since a denoising step ended; None before the first."""

    num_steps_total: int
    """Steps of all requests so far."""

    started: bool
    """Whether the weights are loaded."""

    closing: bool
    """Whether the engine takes no more requests."""

    stopped: bool
    """Whether the engine's threads have ended, by `close` or by a fault."""

    fault: str | None
    """What ended the engine other than `close`."""

    @property
    def admitted(self) -> int:
        """Requests whose pages are booked and that do not run yet."""
        return sum(group.admitted for group in self.groups)

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the running requests, in the order of their groups."""
        return tuple(name for group in self.groups for name in group.running)

    @property
    def pages(self) -> PageCounts:
        """The pools of all groups together."""
        pools = [group.pages for group in self.groups]
        return PageCounts(
            sum(pool.total for pool in pools),
            sum(pool.used for pool in pools),
            sum(pool.free for pool in pools),
            sum(pool.peak for pool in pools),
            sum(pool.cached for pool in pools),
        )


def count_pages(seen: SchedulerSnapshot | GroupSnapshot) -> PageCounts:
    """Return the page counts of a Scheduler's snapshot, or of one group's."""
    return PageCounts(
        total=seen.num_pages,
        used=seen.num_pages_used,
        free=seen.num_pages_free,
        peak=seen.peak_pages_used,
        cached=seen.num_pages_cached,
    )


def unready_reason(status: EngineStatus, stall_limit_s: float) -> str | None:
    """Say why a request sent now would not be served soon; None when it would be."""
    if status.fault is not None:
        return f"the engine has stopped: {status.fault}"
    if status.closing:
        return "shutting down"
    if not status.started:
        return "loading the weights"
    ready = [group for group in status.groups if group.state == "ready"]
    if not ready:
        faults = "; ".join(group.fault or "" for group in status.groups)
        return f"no worker group is ready, the weights load again: {faults}"
    ages = [group.last_progress_age_s for group in ready]
    age = min((age for age in ages if age is not None), default=0.0)
    if None not in ages and age > stall_limit_s:
        return f"no step for {age:.0f} s while a request is to run (limit {stall_limit_s:g} s)"
    return None
