"""What every executor must do, with real processes: the same picture, cancel, errors, the end."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from executor_cases import Group, ray_cluster

from kit.config.deploy import ExecutorBackend
from kit.errors import CancelledError, CheckpointError, GroupLostError, KVCacheError
from kit.executor.base import Executor
from kit.messages import RunRequest, RunResult, Tick
from kit.request import StepEvent

BACKENDS = ("inline", "mp", pytest.param("ray", marks=pytest.mark.long))


def ignore(event: StepEvent) -> None:
    del event


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def group(checkpoint: Path) -> Group:
    return Group(checkpoint)


@pytest.fixture(scope="module")
def inline(group: Group) -> Iterator[Executor]:
    with group.start("inline") as executor:
        yield executor


@pytest.fixture(scope="module", params=BACKENDS)
def executor(request: pytest.FixtureRequest, group: Group, inline: Executor) -> Iterator[Executor]:
    if request.param == "inline":
        yield inline
        return
    cluster = ray_cluster() if request.param == "ray" else contextlib.nullcontext()
    with cluster, group.start(request.param) as executor:
        yield executor


def test_it_gives_the_picture_of_the_inline_rank(
    group: Group, executor: Executor, inline: Executor
) -> None:
    events: list[StepEvent] = []
    with group.request(num_partial_images=1) as run:
        expected = inline.run(run, ignore, never)
        result = executor.run(run, events.append, never)
    assert (result.image == expected.image).all()
    assert result.image.std() > 0
    assert (result.request_id, result.tokens_written) == (run.request_id, expected.tokens_written)
    assert [(event.step, event.num_steps) for event in events] == [(1, 2), (2, 2)]
    preview = events[0].preview
    assert preview is not None
    assert preview.shape == expected.image.shape
    assert events[1].preview is None
    same: dict[str, Any] = {
        "load_time_s": 0.0,
        "read_time_s": 0.0,
        "platform": inline.info.platform,
    }
    assert replace(executor.info, **same) == replace(inline.info, **same)


def test_steps_of_requests_in_turn_give_the_pictures_of_each_alone(
    group: Group, executor: Executor, inline: Executor
) -> None:
    with group.request() as one, group.request(num_steps=3) as other:
        expected = {run.request_id: inline.run(run, ignore, never) for run in (one, other)}
        waiting: dict[str, RunRequest | None] = {run.request_id: run for run in (one, other)}
        order, images = [], {}
        while waiting:
            for name, first in list(waiting.items()):
                answer = executor.advance(Tick(name, first, is_stopped=False))
                waiting[name] = None
                order.append(name)
                if isinstance(answer, RunResult):
                    images[name] = answer.image
                    del waiting[name]
        assert order == [one.request_id, other.request_id] * 3 + [other.request_id]
        for name, result in expected.items():
            assert (images[name] == result.image).all()


def test_a_stopped_tick_ends_its_request_only(group: Group, executor: Executor) -> None:
    with group.request(num_steps=500) as one, group.request(num_steps=1) as other:
        for run in (one, other):
            assert isinstance(executor.advance(Tick(run.request_id, run, False)), StepEvent)
        with pytest.raises(CancelledError, match=f"{one.request_id} was cancelled after step 1"):
            executor.advance(Tick(one.request_id, None, is_stopped=True))
        assert isinstance(executor.advance(Tick(other.request_id, None, False)), RunResult)


def test_a_cancelled_request_ends_between_steps_and_the_next_one_runs(
    group: Group, executor: Executor
) -> None:
    steps: list[int] = []
    with (
        group.request(num_steps=500) as run,
        pytest.raises(CancelledError, match=f"request {run.request_id} was cancelled after step"),
    ):
        executor.run(run, lambda event: steps.append(event.step), lambda: len(steps) >= 2)
    assert 2 <= len(steps) < 500
    with group.request(request_id=run.request_id) as again:
        assert executor.run(again, ignore, never).request_id == run.request_id


def test_an_error_comes_with_its_class_and_message(
    group: Group, executor: Executor, inline: Executor
) -> None:
    messages = []
    with group.request() as run:
        assert run.allocation is not None
        beyond = tuple((10**6, *table[1:]) for table in run.allocation.page_tables)
        bad = replace(run, allocation=replace(run.allocation, page_tables=beyond))
        for runner in (inline, executor):
            with pytest.raises(KVCacheError) as caught:
                runner.run(bad, ignore, never)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert "1000000" in messages[0]
        executor.check()
        assert executor.run(run, ignore, never).image.std() > 0


def test_a_callback_that_raises_stops_its_run_only(group: Group, executor: Executor) -> None:
    def fail(event: StepEvent) -> None:
        raise RuntimeError(f"at step {event.step}")

    with group.request(num_steps=500) as run, pytest.raises(RuntimeError, match="at step 1"):
        executor.run(run, fail, never)
    with group.request() as run:
        assert executor.run(run, ignore, never).request_id == run.request_id


def test_ranks_of_a_group_cancel_fail_and_run_together(checkpoint: Path, inline: Executor) -> None:
    """Each of two ranks has one row: both must end a request after the same step."""
    group = Group(checkpoint, cfg_parallel_size=2, vae_patch_parallel_size=2)
    steps: list[int] = []
    with group.start("mp") as executor:
        with group.request(num_steps=500) as run, pytest.raises(CancelledError, match="after step"):
            executor.run(run, lambda event: steps.append(event.step), lambda: len(steps) >= 2)
        with group.request() as run:
            assert run.allocation is not None
            assert len(run.allocation.page_tables) == 1, "a rank has the pages of its own row"
            beyond = tuple((10**6, *table[1:]) for table in run.allocation.page_tables)
            bad = replace(run, allocation=replace(run.allocation, page_tables=beyond))
            with pytest.raises(KVCacheError, match="1000000"):
                executor.run(bad, ignore, never)
            executor.check()
            together = executor.run(run, ignore, never).image.astype(int)
            answers = [executor.advance(Tick(run.request_id, run, False))]
            while not isinstance(answers[-1], RunResult):
                answers.append(executor.advance(Tick(run.request_id, None, False)))
            assert len(answers) == 3
            assert (answers[-1].image == together).all()
    alone = Group(checkpoint)
    with alone.request() as run:
        expected = inline.run(run, ignore, never).image
    assert abs(together - expected).max() <= 1


@pytest.mark.parametrize("backend", ["inline", "mp"])
def test_a_checkpoint_that_became_bad_is_refused_by_name(
    backend: ExecutorBackend, checkpoint: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    group = Group(folder)
    shard = next(folder.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name), group.start(backend):
        pass


@pytest.mark.long
def test_what_is_no_error_of_the_kit_costs_the_process_and_nothing_else(
    checkpoint: Path, tmp_path: Path
) -> None:
    """A rank that raised anything is not trusted any more; inline there is only one to trust."""
    group = Group(checkpoint)
    with (
        group.start("mp") as executor,
        group.request(trace_path=str(tmp_path / "nowhere" / "trace.safetensors")) as run,
    ):
        with pytest.raises(GroupLostError, match=f"{run.request_id}: group 0 rank 0: "):
            executor.run(run, ignore, never)
        with pytest.raises(GroupLostError, match="has ended"):
            executor.check()
