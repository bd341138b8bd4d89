"""Limits of bodies: declared or not, in pieces, multipart, nested."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from kit.server.body import MAX_JSON_DEPTH, LimitedBody, json_depth
from kit.server.errors import install_error_handlers

LIMIT = 1000
JSON_LIMIT = 300


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    install_error_handlers(app, [])
    app.add_middleware(LimitedBody, max_bytes=LIMIT, max_json_bytes=JSON_LIMIT)

    @app.post("/json")
    async def count(body: dict[str, Any]) -> int:
        return len(body["text"])

    @app.post("/form")
    async def form(request: Request) -> int:
        async with request.form() as fields:
            return len(str(fields["text"]))

    @app.get("/nothing")
    async def nothing() -> str:
        return "ok"

    return TestClient(app)


def pieces(body: bytes, size: int = 64) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


JSON = {"content-type": "application/json"}
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize("encoding", ["gzip", "deflate, gzip", ""])
def test_a_compressed_body_is_refused(client: TestClient, encoding: str) -> None:
    answer = client.post("/json", content=b"x", headers={**JSON, "content-encoding": encoding})
    assert answer.status_code == 415
    assert "uncompressed" in answer.json()["error"]["message"]


def multipart(num_chars: int) -> bytes:
    head = b'--b\r\ncontent-disposition: form-data; name="text"\r\n\r\n'
    return head + b"a" * num_chars + b"\r\n--b--\r\n"


@pytest.mark.parametrize("in_pieces", [False, True])
def test_bodies_within_the_limits_arrive_whole(client: TestClient, in_pieces: bool) -> None:
    body = json.dumps({"text": "a" * 200}).encode()
    content = pieces(body) if in_pieces else body
    assert client.post("/json", content=content, headers=JSON).json() == 200
    body = multipart(800)
    content = pieces(body) if in_pieces else body
    assert client.post("/form", content=content, headers=MULTIPART).json() == 800
    assert client.get("/nothing").json() == "ok"


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("kind", ["json", "form"])
def test_a_body_over_the_limit_is_413(client: TestClient, kind: str, in_pieces: bool) -> None:
    body, limit, headers = (
        (json.dumps({"text": "a" * 400}).encode(), JSON_LIMIT, JSON)
        if kind == "json"
        else (multipart(1200), LIMIT, MULTIPART)
    )
    content = pieces(body) if in_pieces else body
    answer = client.post(f"/{kind}", content=content, headers=headers)
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert f"{limit} bytes" in error["message"]


def test_a_declared_length_is_refused_before_the_body_is_sent() -> None:
    """The application below never runs, and nothing of the body is asked for first."""
    import asyncio

    async def never(*_: Any) -> None:
        raise AssertionError("the body was handed on")

    sent: list[Any] = []
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        assert sent, "the body was read before the answer"
        asked += 1
        return {"type": "http.request", "body": b"x" * 10, "more_body": asked < 3}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"content-length", b"99999999999999999999")]}
    guard = LimitedBody(never, max_bytes=LIMIT, max_json_bytes=JSON_LIMIT)
    asyncio.run(guard(scope, receive, send))
    assert sent[0]["status"] == 413
    assert asked == 3, "the rest is read and dropped, so that the sender sees the answer"


@pytest.mark.parametrize("repeats", [MAX_JSON_DEPTH + 1, 100_000])
@pytest.mark.parametrize("shape", ["[", '{"a":', '[{"b":'])
def test_deep_json_is_400_and_never_parsed(shape: str, repeats: int) -> None:
    app = FastAPI()
    install_error_handlers(app, [])
    app.add_middleware(LimitedBody, max_bytes=1 << 20, max_json_bytes=1 << 20)
    parsed: list[Any] = []
    app.add_api_route("/", parsed.append, methods=["POST"])
    with TestClient(app) as client:
        answer = client.post("/", content=shape * repeats, headers=JSON)
    assert answer.status_code == 400
    assert "levels" in answer.json()["error"]["message"]
    assert parsed == []


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(item) for item in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab[]{}"\\ é'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='[{"\\}', max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_depth_is_that_of_the_parsed_value(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json_depth(body) == depth_of(value)


@given(st.binary(max_size=200))
def test_depth_of_anything_is_a_number(body: bytes) -> None:
    assert 0 <= json_depth(body) <= MAX_JSON_DEPTH + 1


def test_a_string_without_end_costs_one_pass() -> None:
    """A quadratic scan of these would take minutes."""
    for body in (b'"' + b'\\"' * 400_000, b'"' * 800_001, b'"' + b"\\" * 800_001):
        assert json_depth(body) == 0
