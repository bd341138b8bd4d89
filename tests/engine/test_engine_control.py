"""The engine under load and at its end: time limits, a full queue, closing, a dead thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_gate import PATIENCE_S, Gate

from kit.api import GenerationRequest, ImageEngine, SamplingParams, StepEvent, load_config
from kit.engine.status import unready_reason
from kit.errors import (
    CancelledError,
    ConfigError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)

MANY_STEPS = SamplingParams(num_inference_steps=500, seed=1)
ONE_STEP = SamplingParams(num_inference_steps=1, seed=1)
QUICK = GenerationRequest("a cat", ONE_STEP)


def make_engine(checkpoint: Path, **stage: object) -> ImageEngine:
    paged = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
    config = load_config(checkpoint, stage_overrides={"0": {**paged, **stage}})
    return ImageEngine(checkpoint, config)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with make_engine(checkpoint, max_num_seqs=2, max_queued_requests=2) as running:
        yield running


@pytest.fixture
def gate(engine: ImageEngine) -> Iterator[Gate]:
    """A request of 500 steps that stands after its first step; cancelled at the end."""
    gate = Gate()
    handle = engine.submit(GenerationRequest("a cat", MANY_STEPS, request_id="held"), gate)
    gate.wait()
    yield gate
    engine.cancel(handle.request_id)
    gate.open()
    with pytest.raises((CancelledError, DeadlineError)):
        handle.future.result(PATIENCE_S)
    status = engine.status()
    assert (status.pages.used, status.waiting, status.admitted, status.running) == (0, 0, 0, ())


@pytest.mark.usefixtures("gate")
def test_a_waiting_request_ends_at_its_time_while_another_stands(engine: ImageEngine) -> None:
    sent = time.perf_counter()
    handle = engine.submit(GenerationRequest("a cat", ONE_STEP, timeout_s=0.2))
    assert engine.status().admitted == 1
    with pytest.raises(DeadlineError, match=r"timeout_s is 0\.2"):
        handle.future.result(PATIENCE_S)
    assert time.perf_counter() - sent >= 0.2
    assert engine.status().admitted == 0
    assert engine.status().running == ("held",)


def test_a_running_request_ends_before_its_next_step(engine: ImageEngine) -> None:
    gate = Gate()
    handle = engine.submit(GenerationRequest("a cat", MANY_STEPS, timeout_s=1.0), gate)
    gate.wait()
    time.sleep(1.1)
    gate.open()
    with pytest.raises(DeadlineError, match="after step 1"):
        handle.future.result(PATIENCE_S)
    assert len(gate.events) == 1
    assert engine.status().pages.used == 0


def test_a_cancel_after_the_last_step_saves_the_decoding(engine: ImageEngine) -> None:
    gate = Gate()
    handle = engine.submit(QUICK, gate)
    gate.wait()
    engine.cancel(handle.request_id)
    gate.open()
    with pytest.raises(CancelledError, match="after step 1"):
        handle.future.result(PATIENCE_S)


@pytest.mark.usefixtures("gate")
def test_an_old_time_limit_does_not_hit_a_new_request_of_the_same_id(engine: ImageEngine) -> None:
    first = GenerationRequest("a cat", ONE_STEP, request_id="same", timeout_s=0.2)
    assert engine.cancel(engine.submit(first).request_id)
    second = engine.submit(GenerationRequest("a cat", ONE_STEP, request_id="same"))
    time.sleep(0.4)
    assert not second.future.done()
    assert engine.cancel("same")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerationRequest("a cat", timeout_s=0), "timeout_s"),
        (GenerationRequest("a cat", timeout_s=float("inf")), "timeout_s"),
        (GenerationRequest("a cat", timeout_s=True), "timeout_s"),
        (GenerationRequest("a cat", num_partial_images=4), "num_partial_images"),
        (GenerationRequest("a cat", num_partial_images=-1), "num_partial_images"),
    ],
)
def test_bad_limits_name_their_field(
    engine: ImageEngine, request_: GenerationRequest, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        engine.submit(request_)
    assert refused.value.param == param


def test_of_five_requests_at_once_two_find_a_queue_of_two_full(engine: ImageEngine) -> None:
    engine.generate(QUICK)
    handles, refusals = [], []
    for _ in range(5):
        try:
            handles.append(engine.submit(GenerationRequest("a cat", MANY_STEPS)))
        except OverloadedError as error:
            refusals.append(error)
    for handle in handles:
        engine.cancel(handle.request_id)
    for handle in handles:
        with pytest.raises(CancelledError):
            handle.future.result(PATIENCE_S)
    assert (len(handles), len(refusals)) == (3, 2)
    assert "max_queued_requests" in str(refusals[0])
    assert 0 < refusals[0].retry_after_s < PATIENCE_S


@pytest.mark.usefixtures("gate")
def test_what_waits_is_given_room_when_one_leaves(engine: ImageEngine) -> None:
    waiting = [engine.submit(QUICK) for _ in range(2)]
    with pytest.raises(OverloadedError):
        engine.submit(QUICK)
    assert (engine.status().admitted, engine.status().waiting) == (1, 1)
    engine.cancel(waiting[0].request_id)
    assert (engine.status().admitted, engine.status().waiting) == (1, 0)
    again = engine.submit(QUICK)
    for handle in (waiting[1], again):
        engine.cancel(handle.request_id)


def test_retry_after_follows_the_run_times_of_this_engine(checkpoint: Path) -> None:
    """The mean of images made; requests without an image say nothing."""
    with make_engine(checkpoint, max_queued_requests=1) as engine:
        times = [engine.generate(QUICK).metrics for _ in range(2)]
        gate = Gate()
        held = engine.submit(GenerationRequest("a cat", MANY_STEPS), gate)
        gate.wait()
        engine.submit(QUICK)
        with pytest.raises(OverloadedError) as refused:
            engine.submit(QUICK)
        engine.cancel(held.request_id)
        gate.open()
    runs = [m.total_time_s - m.queue_time_s for m in times]
    assert min(runs) <= refused.value.retry_after_s <= max(runs) * 1.5 + 0.05


def test_the_view_is_the_schedulers_own_state(engine: ImageEngine, gate: Gate) -> None:
    version = engine.version
    small = SamplingParams(height=128, width=512, num_inference_steps=1)
    next_one = engine.submit(GenerationRequest("two dogs under a tree " * 9, small))
    assert engine.version > version
    view, status = engine.kv_view(), engine.status()
    holdings = engine._queue._scheduler.holdings()
    assert [h.request_id for h in holdings] == ["held", next_one.request_id]
    assert len(view.requests) == len(holdings)
    for seen, held in zip(view.requests, holdings, strict=True):
        assert seen.request_id == held.request_id
        assert seen.generation == held.allocation.generation
        tables = tuple(tuple(page.page for page in row) for row in seen.rows)
        assert tables == held.allocation.page_tables
        for row in seen.rows:
            assert sum(page.num_tokens for page in row) == held.allocation.num_tokens
            assert seen.prefix_tokens + seen.target_tokens == held.allocation.num_tokens
            num_prefix = sum(page.kind == "prefix" for page in row)
            assert num_prefix == seen.prefix_tokens // held.allocation.page_size
    running, admitted = view.requests
    assert {page.kind for page in admitted.rows[0]} == {"prefix", "target"}
    assert (running.state, running.step, running.num_steps) == ("running", 1, 500)
    assert running.tokens_written == gate.events[0].tokens_written
    assert (admitted.state, admitted.step, admitted.tokens_written) == ("admitted", 0, 0)
    all_pages = [page.page for seen in view.requests for row in seen.rows for page in row]
    assert len(set(all_pages)) == len(all_pages) == view.pages.used == status.pages.used
    assert view.pages == status.pages
    engine.cancel(next_one.request_id)


def test_without_pages_the_view_is_empty(checkpoint: Path) -> None:
    engine = ImageEngine(checkpoint, load_config(checkpoint))
    view = engine.kv_view()
    assert (view.mode, view.page_size, view.page_bytes) == ("dense_legacy", None, 0)
    assert (view.pages.total, view.requests) == (0, ())


def test_status_tells_steps_and_their_age(engine: ImageEngine) -> None:
    before = engine.status().num_steps_total
    engine.generate(GenerationRequest("a cat", SamplingParams(num_inference_steps=3)))
    status = engine.status()
    assert status.num_steps_total == before + 3
    assert status.last_step_age_s is not None
    assert status.last_step_age_s < PATIENCE_S
    assert status.groups[0].last_progress_age_s is None, "nothing is to do, so nothing can stall"


def test_a_step_that_stands_is_seen_as_a_stall_and_its_end_too(engine: ImageEngine) -> None:
    gate = Gate()
    handle = engine.submit(QUICK, gate)
    gate.wait()
    assert unready_reason(engine.status(), stall_limit_s=PATIENCE_S) is None
    time.sleep(0.2)
    reason = unready_reason(engine.status(), stall_limit_s=0.1)
    assert reason is not None
    assert "no step" in reason
    gate.open()
    handle.future.result(PATIENCE_S)
    assert unready_reason(engine.status(), stall_limit_s=0.1) is None


def test_close_lets_the_running_request_end_and_refuses_the_rest(checkpoint: Path) -> None:
    engine, gate = make_engine(checkpoint), Gate()
    engine.start()
    running = engine.submit(QUICK, gate)
    waiting = engine.submit(QUICK)
    gate.wait()
    gate.open()
    assert engine.close(grace_s=PATIENCE_S)
    assert running.future.result(0).image.shape == (256, 256, 3)
    with pytest.raises(UnavailableError, match="shutting down"):
        waiting.future.result(0)
    status = engine.status()
    assert (status.closing, status.stopped, status.fault) == (True, True, None)
    assert status.pages.used == 0


def test_close_stops_a_long_request_when_its_grace_is_over(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    engine.start()
    steps: list[StepEvent] = []
    running = engine.submit(GenerationRequest("a cat", MANY_STEPS), steps.append)
    while not steps:
        time.sleep(0.01)
    started = time.perf_counter()
    assert engine.close(grace_s=0.2)
    assert time.perf_counter() - started >= 0.2
    with pytest.raises(UnavailableError, match=r"shutting down.*after step"):
        running.future.result(0)
    assert len(steps) < MANY_STEPS.num_inference_steps  # type: ignore[operator]


def test_a_dead_thread_leaves_nobody_waiting(checkpoint: Path) -> None:
    def die(event: StepEvent) -> None:
        raise SystemExit(f"at step {event.step}")

    engine = make_engine(checkpoint)
    running, waiting = engine.submit(QUICK, die), engine.submit(QUICK)
    engine.start()
    for handle in (running, waiting):
        with pytest.raises(UnavailableError, match="has stopped"):
            handle.future.result(PATIENCE_S)
    engine._pool.groups[0].thread.join(PATIENCE_S)
    status = engine.status()
    assert (status.stopped, status.fault) == (True, "SystemExit: at step 1")
    assert (status.pages.used, status.waiting, status.running) == (0, 0, ())
    with pytest.raises(UnavailableError, match="has stopped"):
        engine.submit(QUICK)
    assert engine.close()


def test_a_callback_that_raises_fails_its_own_request_only(engine: ImageEngine) -> None:
    def fail(event: StepEvent) -> None:
        raise RuntimeError(f"at step {event.step}")

    handle = engine.submit(QUICK, fail)
    with pytest.raises(EngineError, match="RuntimeError: at step 1"):
        handle.future.result(PATIENCE_S)
    assert engine.generate(QUICK).image.shape == (256, 256, 3)


def test_a_caller_cannot_end_the_engine_by_cancelling_a_future(engine: ImageEngine) -> None:
    handle = engine.submit(QUICK)
    assert not handle.future.cancel()
    assert handle.future.result(PATIENCE_S).image.shape == (256, 256, 3)
    assert engine.generate(QUICK).request_id


@pytest.mark.parametrize("value", [0, -1, True, "2", 2.0])
def test_the_limit_of_the_queue_is_a_strict_positive_integer(
    checkpoint: Path, value: object
) -> None:
    with pytest.raises(ConfigError, match="max_queued_requests"):
        load_config(checkpoint, stage_overrides={"0": {"max_queued_requests": value}})
