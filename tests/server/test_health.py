"""Liveness, readiness and metrics of a server, each moved by a real engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_gate import PATIENCE_S, Gate
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from kit.api import GenerationRequest, ImageEngine, SamplingParams, StepEvent, load_config
from kit.errors import CancelledError, DeadlineError, InvalidRequestError, OverloadedError
from kit.server.health import install_health
from kit.server.settings import ServerSettings

QUICK = GenerationRequest("a cat", SamplingParams(num_inference_steps=1, seed=1))
LONG = GenerationRequest("a cat", SamplingParams(num_inference_steps=500, seed=1))


def make_engine(checkpoint: Path, **stage: object) -> ImageEngine:
    paged = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
    config = load_config(checkpoint, stage_overrides={"0": {**paged, **stage}})
    return ImageEngine(checkpoint, config)


def make_client(engine: ImageEngine, stall_limit_s: float = 120.0) -> TestClient:
    app = FastAPI()
    install_health(app, engine, ServerSettings(name="m", stall_limit_s=stall_limit_s))
    return TestClient(app)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with make_engine(checkpoint, max_queued_requests=1) as running:
        yield running


def check(client: TestClient, status: int, words: str | None) -> None:
    """`/health` is always 200; `/ready` answers as given."""
    assert client.get("/health").json() == {"status": "ok"}
    answer = client.get("/ready")
    assert answer.status_code == status, answer.text
    reason = answer.json()["reason"]
    assert (reason is None) if words is None else (words in reason)


def test_ready_from_loading_to_the_end(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    client = make_client(engine)
    check(client, 503, "loading")
    engine.start()
    check(client, 200, None)
    engine.close()
    check(client, 503, "shutting down")


def test_an_engine_that_stands_is_not_ready_until_it_goes_on(engine: ImageEngine) -> None:
    client, gate = make_client(engine, stall_limit_s=0.1), Gate()
    handle = engine.submit(QUICK, gate)
    gate.wait()
    time.sleep(0.2)
    check(client, 503, "no step")
    assert client.get("/ready").json()["num_running_requests"] == 1
    gate.open()
    handle.future.result(PATIENCE_S)
    check(client, 200, None)


def test_a_dead_engine_is_not_ready(checkpoint: Path) -> None:
    def die(event: StepEvent) -> None:
        raise SystemExit(event.step)

    engine = make_engine(checkpoint)
    client = make_client(engine)
    engine.submit(QUICK, die)
    engine.start()
    engine._pool.groups[0].thread.join(PATIENCE_S)
    check(client, 503, "has stopped: SystemExit")


Samples = dict[str, float]


@pytest.fixture
def scrape(engine: ImageEngine) -> Callable[[], Samples]:
    client = make_client(engine)

    def samples() -> Samples:
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {
            sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    return samples


def moved(before: Samples, after: Samples) -> Samples:
    return {
        name: after[name] - value
        for name, value in before.items()
        if after[name] != value and not name.endswith("_created")
    }


def test_a_finished_request_moves_steps_times_and_outcomes(
    engine: ImageEngine, scrape: Callable[[], Samples]
) -> None:
    before = scrape()
    sampling = SamplingParams(num_inference_steps=2, seed=1)
    request = GenerationRequest("a cat", sampling, num_partial_images=1)
    metrics = engine.generate(request).metrics
    change = moved(before, scrape())
    assert change["kit_steps_total"] == change["kit_step_seconds_count"] == 2
    assert change["kit_step_seconds_sum"] == pytest.approx(sum(metrics.step_times_s))
    assert change["kit_requests_total/ok"] == 1
    times = {
        "queue": metrics.queue_time_s,
        "denoise": sum(metrics.step_times_s),
        "preview": metrics.preview_time_s,
        "decode": metrics.decode_time_s,
        "total": metrics.total_time_s,
    }
    for phase, seconds in times.items():
        assert change[f"kit_request_seconds_count/{phase}"] == 1
        assert change[f"kit_request_seconds_sum/{phase}"] == pytest.approx(seconds)
    others = {name for name in change if name.startswith("kit_requests_total")}
    assert others == {"kit_requests_total/ok"}


def test_queue_running_and_pages_move_while_a_request_runs(
    engine: ImageEngine, scrape: Callable[[], Samples]
) -> None:
    idle, gate = scrape(), Gate()
    running = engine.submit(QUICK, gate)
    gate.wait()
    waiting = engine.submit(QUICK)
    busy, status = scrape(), engine.status()
    assert (busy["kit_queue_requests"], busy["kit_running_requests"]) == (1, 1)
    assert busy["kit_kv_pages_used"] == status.pages.used > 0
    assert busy["kit_kv_pages_peak"] == status.pages.peak >= status.pages.used
    assert busy["kit_kv_pool_pages"] == status.pages.total
    assert (
        busy["kit_kv_pool_bytes"]
        == engine.info.pool_bytes
        == status.page_bytes * (status.pages.total)
    )
    gate.open()
    for handle in (running, waiting):
        handle.future.result(PATIENCE_S)
    after = scrape()
    for name in ("kit_queue_requests", "kit_running_requests", "kit_kv_pages_used"):
        assert (idle[name], after[name]) == (0, 0)


def test_each_way_to_end_is_counted(engine: ImageEngine, scrape: Callable[[], Samples]) -> None:
    before, gate = scrape(), Gate()
    held = engine.submit(LONG, gate)
    gate.wait()
    with pytest.raises(InvalidRequestError):
        engine.submit(GenerationRequest(" "))
    late = engine.submit(GenerationRequest("a cat", timeout_s=0.05))
    with pytest.raises(OverloadedError):
        engine.submit(QUICK)
    with pytest.raises(DeadlineError):
        late.future.result(PATIENCE_S)
    engine.cancel(held.request_id)
    gate.open()
    with pytest.raises(CancelledError):
        held.future.result(PATIENCE_S)

    def fail(event: StepEvent) -> None:
        raise RuntimeError(event.step)

    failed = engine.submit(QUICK, fail)
    assert failed.future.exception(PATIENCE_S) is not None
    change = moved(before, scrape())
    outcomes = {
        name.removeprefix("kit_requests_total/"): value
        for name, value in change.items()
        if name.startswith("kit_requests_total/")
    }
    assert outcomes == {
        "refused": 1,
        "overloaded": 1,
        "deadline": 1,
        "cancelled": 1,
        "failed": 1,
    }


def test_requests_that_a_closing_engine_ends_are_counted(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    engine.submit(QUICK)
    engine.close()
    text = make_client(engine).get("/metrics").text
    assert 'kit_requests_total{outcome="unavailable"} 1.0' in text
