"""GET /v1/kv: the view as JSON and as events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from engine_gate import PATIENCE_S, Gate
from fastapi import FastAPI
from fastapi.testclient import TestClient

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.server.errors import install_error_handlers
from kit.server.kv import EVENT_INTERVAL_S, install_kv
from kit.server.settings import ServerSettings

# Long enough to fill a page of prefix.
PROMPT = "a cat on a sofa in front of a window " * 4
REQUEST = GenerationRequest(PROMPT, SamplingParams(num_inference_steps=3, seed=1))
MAX_STREAMS = 2


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    paged = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
    with ImageEngine(checkpoint, load_config(checkpoint, stage_overrides={"0": paged})) as running:
        yield running


def make_app(engine: ImageEngine) -> FastAPI:
    app = FastAPI()
    install_error_handlers(app, [])
    install_kv(app, engine, ServerSettings(name="m", max_event_streams=MAX_STREAMS))
    return app


class Stream:
    """A client of the event stream that speaks ASGI, as the test client waits for the end."""

    def __init__(self, app: FastAPI, query: str = "stream=true", accept: str = "*/*") -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.events: list[tuple[float, dict[str, Any]]] = []
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/kv",
            "query_string": query.encode(),
            "headers": [(b"accept", accept.encode())],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def leave(self) -> None:
        self._left.set()
        await self.task

    async def wait_for(self, num_events: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.events) < num_events:
                await asyncio.sleep(0.01)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        elif message.get("body", b"").startswith(b"event: kv\n"):
            _, number, data = message["body"].decode().rstrip("\n").split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert number == f"id: {event['version']}"
            self.events.append((time.monotonic(), event))


def test_json_is_the_engines_view(engine: ImageEngine) -> None:
    gate = Gate()
    handle = engine.submit(REQUEST, gate)
    gate.wait()
    answer = TestClient(make_app(engine)).get("/v1/kv")
    assert answer.headers["content-type"] == "application/json"
    view = answer.json()
    assert view == json.loads(json.dumps(asdict(engine.kv_view())))
    [request] = view["requests"]
    assert (request["request_id"], request["step"]) == (handle.request_id, 1)
    assert {page["kind"] for row in request["rows"] for page in row} == {"prefix", "target"}
    gate.open()
    handle.future.result(PATIENCE_S)


def test_events_follow_a_request_from_start_to_end(engine: ImageEngine) -> None:
    async def run() -> list[tuple[float, dict[str, Any]]]:
        stream = Stream(make_app(engine))
        await stream.wait_for(1)
        gate = Gate()
        handle = engine.submit(REQUEST, gate)
        while not any(event["requests"] for _, event in stream.events):
            await asyncio.sleep(0.01)
        gate.open()
        await asyncio.wait_for(asyncio.wrap_future(handle.future), PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while stream.events[-1][1]["requests"]:
                await asyncio.sleep(0.01)
        seen = len(stream.events)
        await asyncio.sleep(3 * EVENT_INTERVAL_S)
        assert len(stream.events) == seen, "an event without a change"
        await stream.leave()
        assert stream.headers[b"content-type"].startswith(b"text/event-stream")
        return stream.events

    events = asyncio.run(run())
    versions = [event["version"] for _, event in events]
    assert versions == sorted(set(versions))
    assert events[0][1]["requests"] == events[-1][1]["requests"] == []
    assert events[-1][1]["pages"]["used"] == 0
    running = [event["requests"][0] for _, event in events if event["requests"]]
    assert running
    assert all(request["state"] == "running" for request in running)
    duration = events[-1][0] - events[0][0]
    assert len(events) <= duration / EVENT_INTERVAL_S + 2


@pytest.mark.parametrize(
    ("query", "accept"),
    [
        ("stream=true", "*/*"),
        ("stream=true", "application/json"),
        ("stream=false", "text/event-stream"),
        ("", "text/event-stream"),
        ("", "application/json, text/event-stream;q=0.9"),
    ],
)
def test_a_stream_is_asked_for_by_query_or_header(
    engine: ImageEngine, query: str, accept: str
) -> None:
    async def run() -> None:
        stream = Stream(make_app(engine), query, accept)
        await stream.wait_for(1)
        await stream.leave()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("query", "param", "expected"),
    [
        *[
            (f"stream={value}", "stream", f"'true' or 'false' (got {value!r})")
            for value in ("1", "0", "yes", "on", "True", "TRUE", "", "null")
        ],
        ("strem=true", "strem", "unknown field"),
        ("stream=true&stream=false", "stream", "is given twice"),
    ],
)
def test_a_query_takes_the_booleans_of_json_and_no_unknown_name(
    engine: ImageEngine, query: str, param: str, expected: str
) -> None:
    answer = TestClient(make_app(engine)).get(f"/v1/kv?{query}")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert expected in error["message"]


def test_too_many_streams_are_refused_until_one_is_left(engine: ImageEngine) -> None:
    async def run() -> None:
        app = make_app(engine)
        opened = [Stream(app) for _ in range(MAX_STREAMS)]
        for stream in opened:
            await stream.wait_for(1)
        refused = Stream(app)
        await refused.task
        assert refused.status == 503
        assert int(refused.headers[b"retry-after"]) >= 1
        await opened[0].leave()
        again = Stream(app)
        await again.wait_for(1)
        for stream in (again, opened[1]):
            await stream.leave()

    asyncio.run(run())


def test_a_stream_ends_when_the_engine_closes(checkpoint: Path) -> None:
    async def run() -> None:
        engine = ImageEngine(checkpoint, load_config(checkpoint))
        stream = Stream(make_app(engine))
        await stream.wait_for(1)
        engine.close()
        await asyncio.wait_for(stream.task, PATIENCE_S)

    asyncio.run(run())
