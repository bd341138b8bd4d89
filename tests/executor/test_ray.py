"""Ranks in a Ray cluster: together, killed, stuck, without a cluster; see test_conformance, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_cases import Group, has_ended, ray_cluster, wait_until

from kit.errors import CancelledError, GroupLostError, UnsupportedError
from kit.executor.ray_group import RayExecutor
from kit.request import StepEvent

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


def ignore(event: StepEvent) -> None:
    del event


def never() -> bool:
    return False


def test_without_a_cluster_it_says_how_to_start_one(checkpoint: Path) -> None:
    with pytest.raises(UnsupportedError, match="ray start --head"), Group(checkpoint).start("ray"):
        pass


@pytest.mark.usefixtures("cluster")
def test_two_ranks_run_cancel_and_end_together(checkpoint: Path) -> None:
    group = Group(checkpoint, tensor_parallel_size=2)
    steps: list[int] = []
    with group.start("ray", timeout_s=30.0) as executor:
        assert isinstance(executor, RayExecutor)
        pids = executor.pids
        with group.request() as run:
            assert executor.run(run, ignore, never).image.std() > 0
        with group.request(num_steps=500) as run, pytest.raises(CancelledError, match="after step"):
            executor.run(run, lambda event: steps.append(event.step), lambda: len(steps) >= 2)
        with (
            group.request(num_steps=500) as run,
            pytest.raises(GroupLostError, match=r"rank [01] "),
        ):
            executor.run(run, lambda _: os.kill(pids[1], signal.SIGKILL), never)
    wait_until(lambda: all(map(has_ended, pids)))


@pytest.mark.usefixtures("cluster")
def test_a_stuck_rank_is_killed_when_its_time_is_up(checkpoint: Path) -> None:
    group = Group(checkpoint)
    with group.start("ray", timeout_s=3.0) as executor:
        assert isinstance(executor, RayExecutor)
        [pid] = executor.pids
        with (
            group.request(num_steps=500) as run,
            pytest.raises(GroupLostError, match="execute_model_timeout_s is 3"),
        ):
            executor.run(run, lambda _: os.kill(pid, signal.SIGSTOP), never)
        with pytest.raises(GroupLostError, match="has ended"):
            executor.check()
    wait_until(lambda: has_ended(pid))
