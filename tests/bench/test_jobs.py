"""Which requests a load makes, and when they are due."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from bench_loads import small_load

from bench.harness.jobs import due_times, job, kinds_of
from bench.harness.load import Poisson, Trace


def test_every_kind_comes_before_the_next_prompt() -> None:
    load = small_load(
        prompts=("a", "b"), sizes=("16x32", "32x16"), steps=(1, 2), guidance=(1.0, 5.0)
    )
    jobs = [job(load, at) for at in range(17)]
    kinds = [(one.size, one.steps, one.guidance) for one in jobs]
    assert len(set(kinds[:8])) == 8
    assert kinds[8:16] == kinds[:8]
    assert [one.prompt for one in jobs] == ["a"] * 8 + ["b"] * 8 + ["a"]
    assert [one.seed for one in jobs] == list(range(7, 24))
    assert (jobs[0].width, jobs[0].height) == (16, 32)
    assert kinds_of(load) == jobs[:8]


def test_closed_requests_are_due_when_a_client_is_free() -> None:
    assert list(due_times(small_load(requests=3))) == [None, None, None]
    endless = due_times(small_load(requests=None, duration_s=1.0))
    assert list(itertools.islice(endless, 100)) == [None] * 100


def test_trace_is_followed() -> None:
    load = small_load(requests=None, arrivals=Trace("trace", (0.0, 0.25, 3.0)))
    assert list(due_times(load)) == [0.0, 0.25, 3.0]


def test_poisson_arrivals() -> None:
    load = small_load(requests=4000, arrivals=Poisson("poisson", rate_per_s=2.0, seed=5))
    moments = list(due_times(load))
    assert moments == list(due_times(load))
    assert moments != list(
        due_times(replace(load, arrivals=Poisson("poisson", rate_per_s=2.0, seed=6)))
    )
    gaps = [float(after or 0) - float(before or 0) for before, after in itertools.pairwise(moments)]
    assert all(gap > 0 for gap in gaps)
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.05)
    # The gaps of a Poisson process spread as widely as they are long.
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(0.5, rel=0.07)


def test_poisson_arrivals_end_with_the_time() -> None:
    arrivals = Poisson("poisson", rate_per_s=10.0, seed=5)
    moments = list(due_times(small_load(requests=None, duration_s=2.0, arrivals=arrivals)))
    assert 10 <= len(moments) <= 30
    assert all(moment is not None and moment <= 2.0 for moment in moments)
