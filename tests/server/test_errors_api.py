"""Errors in OpenAI's shape whatever raised them, request ids, and hints about retries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_gate import PATIENCE_S, Gate
from fastapi import FastAPI
from fastapi.testclient import TestClient

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.errors import (
    CapacityError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KitError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    UnsupportedError,
    WorkerError,
)
from kit.server.app import create_app
from kit.server.errors import install_error_handlers
from kit.server.request_log import RequestLog
from kit.server.settings import ServerSettings

ERRORS: list[tuple[KitError, int, str | None, str | None]] = [
    (InvalidRequestError("x", param="seed"), 400, "seed", None),
    (
        CapacityError("x", needed_bytes=2, given_bytes=1, param="size"),
        400,
        "size",
        "request_too_large",
    ),
    (NotFoundError("x", param="model"), 404, "model", "model_not_found"),
    (UnsupportedError("x", param="image"), 501, "image", "unsupported"),
    (UnsupportedError("x"), 501, None, "unsupported"),
    (OverloadedError("x", retry_after_s=1.2), 503, None, "overloaded"),
    (UnavailableError("x"), 503, None, "unavailable"),
    (DeadlineError("x"), 504, None, "deadline_exceeded"),
    (WorkerError("x"), 500, None, None),
    (EngineError("half \ud800 a pair"), 500, None, None),
]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """An application whose routes raise."""
    app = FastAPI()
    install_error_handlers(app, ("seed", "size"))
    app.add_middleware(RequestLog)

    @app.get("/kit/{number}")
    async def kit_error(number: int) -> None:
        raise ERRORS[number][0]

    @app.get("/bug")
    async def bug() -> None:
        raise ZeroDivisionError("secret")

    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize("number", range(len(ERRORS)), ids=lambda i: type(ERRORS[i][0]).__name__)
def test_errors_of_the_kit(client: TestClient, number: int) -> None:
    error, status, param, code = ERRORS[number]
    answer = client.get(f"/kit/{number}")
    assert answer.status_code == status
    content = answer.json()
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"message", "type", "param", "code"}
    assert (content["error"]["param"], content["error"]["code"]) == (param, code)
    assert content["error"]["type"] == (
        "invalid_request_error" if status < 500 and status != 499 else "server_error"
    )
    retry = answer.headers.get("x-should-retry")
    assert retry == (None if error.retry_helps or status < 500 else "false")
    assert ("retry-after" in answer.headers) == isinstance(error, OverloadedError)


def test_retry_after_is_whole_seconds(client: TestClient) -> None:
    number = next(i for i, (e, *_) in enumerate(ERRORS) if isinstance(e, OverloadedError))
    assert client.get(f"/kit/{number}").headers["retry-after"] == "2"


def test_a_bug_is_an_answer_that_tells_no_secret(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="kit"):
        answer = client.get("/bug", headers={"x-request-id": "mine-1"})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["type"], error["message"]) == (
        "server_error",
        "internal error: ZeroDivisionError",
    )
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"] == "mine-1"
    logged = [r for r in caplog.records if r.exc_info]
    assert len(logged) == 1
    assert "mine-1" in logged[0].getMessage()


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("job-17:a.b_C", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("two words", False),
        ("<script>", False),
        ("", False),
    ],
)
def test_a_plain_request_id_is_kept(
    api: TestClient, caplog: pytest.LogCaptureFixture, given: str, is_kept: bool
) -> None:
    with caplog.at_level(logging.INFO, logger="kit"):
        answer = api.get("/v1/models", headers={"x-request-id": given})
    seen = answer.headers["x-request-id"]
    assert (seen == given) == is_kept
    assert seen
    [line] = [r.getMessage() for r in caplog.records if r.name == "kit.server"]
    assert f"request {seen}" in line
    assert "200" in line


def test_every_answer_has_an_id_of_its_own(api: TestClient) -> None:
    seen = {api.get(path).headers["x-request-id"] for path in ("/health", "/nope", "/v1/models")}
    assert len(seen) == 3


def test_unknown_routes_and_methods_have_the_same_shape(api: TestClient) -> None:
    for method, path, status in (
        ("GET", "/nope", 404),
        ("GET", "/v1/images/generations", 405),
        ("POST", "/v1/models", 405),
        ("PUT", "/v1/jobs/x", 405),
        ("GET", "/v1/models/nope", 404),
    ):
        answer = api.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_wrong_method_is_told_the_right_ones_once(api: TestClient) -> None:
    answer = api.put("/v1/jobs/x")
    assert answer.headers.get_list("allow") == ["DELETE, GET"]
    assert "takes DELETE, GET" in answer.json()["error"]["message"]


def test_a_long_path_is_not_sent_back_or_logged_whole(
    api: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="kit"):
        answer = api.get("/" + "a" * 5000)
    assert answer.status_code == 404
    assert len(answer.content) < 500
    assert all(len(record.getMessage()) < 500 for record in caplog.records)


def test_probes_may_ask_for_the_head_only(api: TestClient) -> None:
    for path in ("/health", "/ready"):
        assert api.head(path).status_code == 200


def test_a_full_queue_is_503_with_the_time_to_wait(checkpoint: Path) -> None:
    config = load_config(checkpoint, stage_overrides={"0": {"max_queued_requests": 1}})
    gate = Gate()
    quick = GenerationRequest("a cat", SamplingParams(num_inference_steps=1, guidance_scale=1))
    with (
        ImageEngine(checkpoint, config) as engine,
        TestClient(create_app(engine, ServerSettings("painter"))) as api,
    ):
        running = engine.submit(quick, gate)
        gate.wait()
        answer = api.post("/v1/images/generations", json={"prompt": "a cat", "n": 2})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "x-should-retry" not in answer.headers
        assert answer.json()["error"]["code"] == "overloaded"
        assert engine.status().waiting + engine.status().admitted == 0
        gate.open()
        running.future.result(PATIENCE_S)


def test_before_the_weights_are_loaded_the_server_answers(checkpoint: Path) -> None:
    engine = ImageEngine(checkpoint, load_config(checkpoint))
    with TestClient(create_app(engine, ServerSettings("painter"))) as api:
        assert api.get("/health").status_code == 200
        assert api.get("/v1/models").status_code == 200
        info = api.get("/v1/server/info")
        assert (info.status_code, info.json()["error"]["code"]) == (503, "unavailable")
        refused = api.post("/v1/images/generations", json={"prompt": ""})
        assert refused.status_code == 400
    engine.close()
