"""Every field with values it must not have: no 5xx, the engine lives, its pages are back."""

from __future__ import annotations

import json
import time

import pytest
from engine_gate import PATIENCE_S
from fastapi.testclient import TestClient

from bench.server_fuzz import (
    CHAT,
    EDITS,
    IMAGES,
    JOBS,
    ROUND,
    Answer,
    FuzzRequest,
    fuzz_requests,
    problem_of,
    send_and_tidy,
)
from kit.api import ImageEngine
from kit.server.protocol import ChatCompletionBody, ImageEditForm, ImageGenerationBody

QUICK = {"prompt": "a cat", "num_inference_steps": 1, "guidance_scale": 1, "seed": 1}


def test_fuzzed_requests_are_answered_and_leave_nothing(
    api: TestClient, served: ImageEngine
) -> None:
    def send(request: FuzzRequest) -> Answer:
        headers = {"content-type": request.content_type}
        seen = api.request(request.method, request.path, content=request.content, headers=headers)
        return Answer(seen.status_code, dict(seen.headers), seen.content)

    before = api.post(IMAGES, json=QUICK).json()["data"][0]["b64_json"]
    problems, statuses = [], set()
    for request in fuzz_requests(max(ROUND, 200), seed=3):
        answer = send_and_tidy(request, send)
        statuses.add(answer.status)
        if problem := problem_of(request, answer):
            problems.append(problem)
    assert problems == []
    assert statuses >= {200, 400, 404}, "some of it must get through"
    deadline = time.monotonic() + PATIENCE_S
    while served.status().running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    status = served.status()
    assert (status.waiting, status.admitted, status.pages.used, status.fault) == (0, 0, 0, None)
    assert api.post(IMAGES, json=QUICK).json()["data"][0]["b64_json"] == before


def test_the_fuzz_reaches_every_field_of_every_body() -> None:

    texts: dict[str, list[bytes]] = {IMAGES: [], JOBS: [], CHAT: [], EDITS: []}
    for request in fuzz_requests(ROUND, seed=3):
        texts.setdefault(request.path, []).append(request.content)
    for path, model in (
        (IMAGES, ImageGenerationBody),
        (JOBS, ImageGenerationBody),
        (CHAT, ChatCompletionBody),
        (EDITS, ImageEditForm),
    ):
        seen = b"".join(texts[path]).decode("utf-8", "replace")
        assert [name for name in model.model_fields if f'"{name}' not in seen] == []


def test_the_same_seed_makes_the_same_requests() -> None:
    assert list(fuzz_requests(50, seed=1)) == list(fuzz_requests(50, seed=1))
    assert list(fuzz_requests(50, seed=1)) != list(fuzz_requests(50, seed=2))


@pytest.mark.parametrize(
    ("path", "status", "headers", "content"),
    [
        (IMAGES, 500, {"x-request-id": "a"}, b'{"error": {}}'),
        (IMAGES, 501, {"x-request-id": "a"}, b"{}"),
        (IMAGES, 400, {"x-request-id": "a"}, b'{"detail": "x"}'),
        (IMAGES, 400, {"x-request-id": "a"}, b"text"),
        (IMAGES, 200, {}, b"{}"),
        (
            EDITS,
            400,
            {"x-request-id": "a"},
            json.dumps({"error": {"message": "m", "type": "t", "param": 1, "code": None}}).encode(),
        ),
    ],
)
def test_a_wrong_answer_is_a_problem(
    path: str, status: int, headers: dict[str, str], content: bytes
) -> None:
    assert problem_of(FuzzRequest("POST", path), Answer(status, headers, content)) is not None
