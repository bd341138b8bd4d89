"""Several requests on one group, a step each in turn: the pictures are those of whole requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from engine_gate import PATIENCE_S, Gate

from kit.api import GenerationRequest, ImageEngine, SamplingParams, StepEvent, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.errors import CancelledError, DeadlineError, EngineError, UnavailableError

Image = npt.NDArray[np.uint8]

REQUESTS = {
    "six": GenerationRequest(
        "a red vase",
        SamplingParams(num_inference_steps=6, seed=1, guidance_scale=1.0),
        request_id="six",
    ),
    "twelve": GenerationRequest(
        "a cat",
        SamplingParams(num_inference_steps=12, seed=2, guidance_scale=1.0, height=320, width=192),
        request_id="twelve",
        num_partial_images=1,
    ),
    "two rows": GenerationRequest(
        "a dog on a sofa", SamplingParams(num_inference_steps=2, seed=3), request_id="two rows"
    ),
}
PLUG = GenerationRequest("a cat", SamplingParams(num_inference_steps=1, seed=1, guidance_scale=1.0))
MANY = GenerationRequest("a cat", SamplingParams(num_inference_steps=500, seed=1))


def make_engine(places: int, *, by_steps: bool = True, **stage: object) -> ImageEngine:
    stage = {"step_execution": by_steps, "max_num_seqs": places, **stage}
    return ImageEngine(
        DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": stage})
    )


class Seen:
    """What the callbacks of several requests saw, in the order of calls."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.previews: dict[tuple[str, int], Image] = {}

    def __call__(self, event: StepEvent) -> None:
        self.steps.append((event.request_id, event.step))
        if event.preview is not None:
            self.previews[event.request_id, event.step] = event.preview


def run_all(engine: ImageEngine, *names: str) -> tuple[Seen, dict[str, Image]]:
    """Run requests that are all there before the first step."""
    seen = Seen()
    handles = {name: engine.submit(REQUESTS[name], seen) for name in names}
    with engine:
        return seen, {
            name: handle.future.result(PATIENCE_S).image for name, handle in handles.items()
        }


@pytest.fixture(scope="module")
def alone() -> tuple[Seen, dict[str, Image]]:
    """Whole requests, one after another."""
    return run_all(make_engine(1, by_steps=False), *REQUESTS)


@pytest.fixture(scope="module")
def engine() -> Iterator[ImageEngine]:
    with make_engine(2) as running:
        yield running


def test_three_at_once_draw_what_each_draws_alone(alone: tuple[Seen, dict[str, Image]]) -> None:
    seen, images = run_all(make_engine(3), *REQUESTS)
    assert [name for name, _ in seen.steps[:6]] == [*REQUESTS] * 2
    for name, image in alone[1].items():
        assert np.array_equal(images[name], image), name
    assert seen.previews.keys() == alone[0].previews.keys() != set()
    for key, preview in alone[0].previews.items():
        assert np.array_equal(seen.previews[key], preview)


def test_six_and_twelve_steps_take_turns(
    engine: ImageEngine, alone: tuple[Seen, dict[str, Image]]
) -> None:
    gate, seen = Gate(), Seen()
    handles = [engine.submit(PLUG, gate)]
    gate.wait()
    handles += [engine.submit(REQUESTS[name], seen) for name in ("six", "twelve")]
    gate.open()
    _, six, twelve = (handle.future.result(PATIENCE_S) for handle in handles)
    both = [(name, step) for step in range(1, 7) for name in ("six", "twelve")]
    assert seen.steps == both + [("twelve", step) for step in range(7, 13)]
    assert np.array_equal(six.image, alone[1]["six"])
    assert np.array_equal(twelve.image, alone[1]["twelve"])
    assert (len(six.metrics.step_times_s), len(twelve.metrics.step_times_s)) == (6, 12)
    assert sum(six.metrics.step_times_s) < six.metrics.total_time_s


@pytest.mark.long
def test_one_place_is_request_mode(alone: tuple[Seen, dict[str, Image]]) -> None:
    seen, images = run_all(make_engine(1), *REQUESTS)
    assert seen.steps == alone[0].steps
    assert all(np.array_equal(images[name], image) for name, image in alone[1].items())


def in_turn(
    engine: ImageEngine, request: GenerationRequest, on_step: Callable[[StepEvent], None]
) -> tuple[BaseException | None, Image]:
    """Run a request beside one of two steps; returns how it ended, and the other's picture."""
    gate = Gate()
    other = engine.submit(REQUESTS["two rows"], gate)
    gate.wait()
    handle = engine.submit(request, on_step)
    assert engine.status().admitted == 1
    gate.open()
    ended = handle.future.exception(PATIENCE_S)
    image = other.future.result(PATIENCE_S).image
    assert (engine.status().running, engine.status().waiting) == ((), 0)
    return ended, image


def test_a_cancel_ends_one_and_no_other(
    engine: ImageEngine, alone: tuple[Seen, dict[str, Image]]
) -> None:
    request = replace(MANY, request_id="goes")
    running: list[tuple[str, ...]] = []

    def cancel(event: StepEvent) -> None:
        running.append(engine.status().running)
        if event.step == 2:
            engine.cancel(event.request_id)

    ended, image = in_turn(engine, request, cancel)
    assert isinstance(ended, CancelledError)
    assert str(ended) == "request goes was cancelled after step 2"
    assert set(running[0]) == {"two rows", "goes"}
    assert np.array_equal(image, alone[1]["two rows"])


def test_a_time_limit_ends_one_and_no_other(
    engine: ImageEngine, alone: tuple[Seen, dict[str, Image]]
) -> None:
    waited = threading.Event()

    def wait(event: StepEvent) -> None:
        if event.step == 1:
            waited.wait(1.0)

    ended, image = in_turn(engine, replace(MANY, timeout_s=0.5), wait)
    assert isinstance(ended, DeadlineError)
    assert "was cancelled after step" in str(ended)
    assert np.array_equal(image, alone[1]["two rows"])


def test_a_callback_that_raises_ends_its_request_and_no_other(
    engine: ImageEngine, alone: tuple[Seen, dict[str, Image]]
) -> None:
    def fail(event: StepEvent) -> None:
        raise RuntimeError(f"at step {event.step}")

    ended, image = in_turn(engine, replace(MANY, request_id="raises"), fail)
    assert isinstance(ended, EngineError)
    assert "request raises failed: RuntimeError: at step 1" in str(ended)
    assert np.array_equal(image, alone[1]["two rows"])
    again, _ = in_turn(engine, replace(PLUG, request_id="raises"), Seen())
    assert again is None, "nothing of the request is left on the rank"


def test_closing_lets_those_that_run_end_and_no_other() -> None:
    engine, gate = make_engine(2), Gate()
    engine.start()
    held = [engine.submit(REQUESTS["two rows"], gate)]
    gate.wait()
    closes = threading.Event()

    def note(event: StepEvent) -> None:
        if event.step == 1:
            closes.set()
            assert engine._queue.wait_closing(PATIENCE_S)

    held.append(engine.submit(PLUG, note))
    waits = engine.submit(MANY)
    gate.open()
    assert closes.wait(PATIENCE_S)
    assert engine.close()
    assert all(handle.future.result(0).image.std() > 0 for handle in held)
    assert isinstance(waits.future.exception(0), UnavailableError)


@pytest.mark.long
def test_a_lost_group_runs_all_that_it_held_once_more(
    alone: tuple[Seen, dict[str, Image]],
) -> None:
    engine, seen = make_engine(2, distributed_executor_backend="mp"), Seen()

    def kill_once(event: StepEvent) -> None:
        seen(event)
        if len(seen.steps) == 4:
            executor = engine._pool.groups[0]._executor
            os.kill(executor.pids[0], signal.SIGKILL)  # type: ignore[union-attr]

    names = ("six", "two rows")
    handles = [engine.submit(REQUESTS[name], kill_once) for name in names]
    with engine:
        images = [handle.future.result(PATIENCE_S).image for handle in handles]
        assert engine.status().groups[0].num_restarts == 1
    both = [(name, step) for step in (1, 2) for name in names]
    assert seen.steps == [*both, *(("six", step) for step in (3, 4, 5, 6))], "none is told twice"
    for name, image in zip(names, images, strict=True):
        assert np.array_equal(image, alone[1][name])


@pytest.mark.long
def test_a_thread_that_ends_leaves_nobody_waiting() -> None:
    engine, gate = make_engine(2), Gate()

    def stop(event: StepEvent) -> None:
        if event.step == 2:
            raise SystemExit(f"at step {event.step}")

    engine.start()
    handles = [engine.submit(replace(MANY, request_id="other"), gate)]
    gate.wait()
    handles.append(engine.submit(replace(MANY, request_id="stops"), stop))
    gate.open()
    for handle in handles:
        assert isinstance(handle.future.exception(PATIENCE_S), UnavailableError)
    engine.close()
