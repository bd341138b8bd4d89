"""Ranks in processes of their own: killed, stuck, orphaned, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from executor_cases import PATIENCE_S, Group, has_ended, wait_until

from kit.errors import GroupLostError
from kit.executor.multiprocess import MultiprocessExecutor
from kit.request import OnStep, StepEvent

# Starts a group, says which processes it has, and either runs a long request or stands there.
_PARENT = """
import sys, time
from pathlib import Path
from executor_cases import Group
group = Group(Path(sys.argv[1]), tensor_parallel_size=2)
with group.start("mp") as executor:
    print(*executor.pids, "torch" in sys.modules, flush=True)
    if sys.argv[2] == "idle":
        print(1, flush=True)
        time.sleep(1000)
    with group.request(num_steps=1000) as run:
        executor.run(run, lambda event: print(event.step, flush=True), lambda: False)
"""


@pytest.fixture(scope="module")
def group(checkpoint: Path) -> Group:
    return Group(checkpoint)


@pytest.fixture
def executor(group: Group) -> Iterator[MultiprocessExecutor]:
    with group.start("mp", timeout_s=2.0) as executor:
        assert isinstance(executor, MultiprocessExecutor)
        yield executor


@pytest.fixture
def pair(checkpoint: Path) -> Iterator[tuple[Group, MultiprocessExecutor]]:
    """Two ranks that share every weight matrix."""
    group = Group(checkpoint, tensor_parallel_size=2)
    with group.start("mp", timeout_s=10.0) as executor:
        assert isinstance(executor, MultiprocessExecutor)
        yield group, executor


def never() -> bool:
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces have other names there")
def test_ranks_of_one_machine_listen_on_its_loopback_only(
    pair: tuple[Group, MultiprocessExecutor],
) -> None:
    seen = [s for pid in pair[1].pids for s in psutil.Process(pid).net_connections("inet")]
    listening = [s.laddr.ip for s in seen if s.status == psutil.CONN_LISTEN]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def signal_at(executor: MultiprocessExecutor, step: int, number: int, *, rank: int = 0) -> OnStep:
    """Return an `on_step` that sends a rank a signal after a step."""

    def on_step(event: StepEvent) -> None:
        if event.step == step:
            os.kill(executor.pids[rank], number)

    return on_step


def test_a_rank_that_is_killed_ends_its_run_at_once(
    group: Group, executor: MultiprocessExecutor
) -> None:
    [pid] = executor.pids
    on_step = signal_at(executor, 2, signal.SIGKILL)
    with (
        group.request(num_steps=500) as run,
        pytest.raises(GroupLostError, match=rf"rank 0 \(process {pid}\) has ended by signal 9"),
    ):
        executor.run(run, on_step, never)
    assert has_ended(pid)


def test_a_rank_that_is_stuck_is_killed_when_its_time_is_up(
    group: Group, executor: MultiprocessExecutor
) -> None:
    [pid] = executor.pids
    on_step = signal_at(executor, 2, signal.SIGSTOP)
    started = time.monotonic()
    with (
        group.request(num_steps=500) as run,
        pytest.raises(GroupLostError, match=r"execute_model_timeout_s is 2\)"),
    ):
        executor.run(run, on_step, never)
    assert 2.0 <= time.monotonic() - started < 30.0
    assert has_ended(pid)


def test_a_stopped_rank_that_takes_no_message_is_killed_when_its_time_is_up(
    group: Group, executor: MultiprocessExecutor
) -> None:
    [pid] = executor.pids
    os.kill(pid, signal.SIGSTOP)
    errors: list[GroupLostError] = []

    def run() -> None:
        # More than a socket holds, as a request with reference images is.
        with group.request(trace_path="x" * 2**22) as request:
            try:
                executor.run(request, lambda _: None, never)
            except GroupLostError as error:
                errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20.0)
    if stuck := thread.is_alive():
        os.kill(pid, signal.SIGKILL)
        thread.join()
    assert not stuck
    assert "takes no message" in str(errors[0])
    assert has_ended(pid)


@pytest.mark.long
def test_an_idle_rank_that_is_killed_is_noticed(executor: MultiprocessExecutor) -> None:
    executor.check()
    os.kill(executor.pids[0], signal.SIGKILL)
    errors: list[GroupLostError] = []

    def is_noticed() -> bool:
        try:
            executor.check()
        except GroupLostError as error:
            errors.append(error)
        return bool(errors)

    wait_until(is_noticed)
    assert "has ended by signal 9" in str(errors[0])


def test_a_killed_rank_takes_those_with_it_that_wait_for_it(
    pair: tuple[Group, MultiprocessExecutor],
) -> None:
    group, executor = pair
    pids = executor.pids
    started = time.monotonic()
    with (
        group.request(num_steps=500) as run,
        pytest.raises(GroupLostError, match=rf"rank 1 \(process {pids[1]}\) has ended by signal 9"),
    ):
        executor.run(run, signal_at(executor, 2, signal.SIGKILL, rank=1), never)
    assert all(map(has_ended, pids))
    assert time.monotonic() - started < 10.0, "nobody waited for a time limit"


@pytest.mark.long
def test_a_stuck_rank_takes_those_with_it_that_wait_for_it(
    pair: tuple[Group, MultiprocessExecutor],
) -> None:
    group, executor = pair
    pids = executor.pids
    with (
        group.request(num_steps=500) as run,
        pytest.raises(GroupLostError, match="execute_model_timeout_s is 10"),
    ):
        executor.run(run, signal_at(executor, 2, signal.SIGSTOP, rank=1), never)
    assert all(map(has_ended, pids))


def test_close_ends_a_run_of_another_thread_and_leaves_nothing(
    group: Group, executor: MultiprocessExecutor
) -> None:
    [pid] = executor.pids
    steps, errors = threading.Event(), []

    def run() -> None:
        with group.request(num_steps=500) as request:
            try:
                executor.run(request, lambda _: steps.set(), never)
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert steps.wait(PATIENCE_S)
    executor.close()
    thread.join(PATIENCE_S)
    assert len(errors) == 1
    assert has_ended(pid)
    assert pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    executor.close()


@pytest.mark.parametrize(
    ("state", "number"),
    [
        ("idle", signal.SIGKILL),
        pytest.param("runs", signal.SIGKILL, marks=pytest.mark.long),
        pytest.param("runs", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_ranks_end_with_the_process_that_started_them(
    checkpoint: Path, tmp_path: Path, state: str, number: signal.Signals
) -> None:
    temporary = tmp_path / "a name of four words"
    temporary.mkdir()
    command = [sys.executable, "-c", _PARENT, str(checkpoint), state]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["TMPDIR"] = str(temporary)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        *ranks, has_torch = parent.stdout.readline().split()
        pids = list(map(int, ranks))
        assert len(pids) == 2
        assert has_torch == "False", "only ranks import torch"
        assert parent.stdout.readline() == "1\n", "it is there"
        assert not any(map(has_ended, pids))
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids).splitlines()
        shared = [line for line in maps if "/dev/shm" in line and "(deleted)" not in line]
        assert not shared, "nothing shared to leave"
        assert len(list(temporary.iterdir())) == 1, "where they met"
        parent.send_signal(number)
        wait_until(lambda: all(map(has_ended, pids)))
        parent.wait(PATIENCE_S)
    assert not list(temporary.iterdir()), "whoever ended first, the meeting place is gone"
