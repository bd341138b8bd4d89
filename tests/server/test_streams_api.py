"""Streams of pictures and of chat chunks; what ends them early."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pictures import decode_b64, decode_url, events_of

from kit.api import ImageEngine
from kit.server.events import Chunk, CompletedEvent, PartialImageEvent

IMAGES, CHAT = "/v1/images/generations", "/v1/chat/completions"
FIELDS = {"num_inference_steps": 4, "guidance_scale": 1, "seed": 3, "stream": True}
MESSAGES = [{"role": "user", "content": "a cat"}]


def stream(api: TestClient, url: str, body: dict[str, Any]) -> str:
    answer = api.post(url, json={**FIELDS, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"]
    return answer.text


def test_partial_pictures_come_before_the_finished_one(api: TestClient) -> None:
    text = stream(api, IMAGES, {"prompt": "a cat", "partial_images": 2})
    events = events_of(text)
    assert [name for name, _ in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    assert all(name == data["type"] for name, data in events)
    partial = [PartialImageEvent(**data) for _, data in events[:2]]
    final = CompletedEvent(**events[2][1])
    assert [event.partial_image_index for event in partial] == [0, 1]
    pictures = [decode_b64(event.b64_json) for event in (*partial, final)]
    assert {picture.size for picture in pictures} == {(256, 256)}
    assert len({picture.tobytes() for picture in pictures}) == 3, "each is another picture"
    assert final.metrics.preview_time_s > 0
    assert final.usage.output_tokens == 257
    assert text.count(": picture 1 of 1, step ") == 4
    plain = api.post(IMAGES, json={**FIELDS, "prompt": "a cat", "stream": False}).json()
    assert decode_b64(plain["data"][0]["b64_json"]).tobytes() == pictures[2].tobytes()
    assert plain["data"][0]["replay"] == events[2][1]["replay"]


def test_each_of_n_pictures_ends_with_its_own_event(api: TestClient) -> None:
    body = {"prompt": "a cat", "n": 2, "output_format": "jpeg", "num_inference_steps": 1}
    events = events_of(stream(api, IMAGES, body))
    assert [(data["image_index"], data["seed"]) for _, data in events] == [(0, 3), (1, 4)]
    assert {decode_b64(data["b64_json"]).format for _, data in events} == {"JPEG"}


def test_chunks_end_with_the_picture(api: TestClient) -> None:
    body = {"messages": MESSAGES, "partial_images": 1, "stream_options": {"include_usage": True}}
    events = events_of(stream(api, CHAT, body))
    assert events[-1] == (None, "[DONE]")
    chunks = [data for name, data in events[:-1] if name is None]
    assert len(chunks) == len(events) - 1, "chunks have no names"
    for chunk in chunks:
        Chunk(**chunk)
    first, partial, final, last = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant"}
    assert partial["choices"][0]["delta"] == {}
    assert decode_b64(partial["choices"][0]["partial_image"]["b64_json"]).size == (256, 256)
    [choice] = final["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["seed"] == choice["replay"]["record"]["request"]["sampling"]["seed"] == 3
    assert decode_url(choice["delta"]["content"]).size == (256, 256)
    assert 'modalities was absent and taken as ["image"]' in final["warnings"]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 257)
    assert {chunk["id"] for chunk in chunks} == {first["id"]}


def test_without_being_asked_a_stream_has_no_previews_and_no_usage(api: TestClient) -> None:
    body = {"messages": MESSAGES, "num_inference_steps": 2}
    _, final, done = events_of(stream(api, CHAT, body))
    assert final[1]["usage"] is None
    assert done == (None, "[DONE]")


@pytest.mark.parametrize("url", [IMAGES, CHAT])
def test_what_is_wrong_from_the_start_is_a_plain_error(api: TestClient, url: str) -> None:
    what = {"prompt": "a cat"} if url == IMAGES else {"messages": MESSAGES}
    answer = api.post(url, json={**FIELDS, **what, "seed": -1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "seed"


@pytest.mark.parametrize("url", [IMAGES, CHAT])
def test_what_goes_wrong_later_is_an_event_with_an_error(
    api: TestClient, served: ImageEngine, url: str
) -> None:
    what = {"prompt": "a cat"} if url == IMAGES else {"messages": MESSAGES}
    body = {**what, "num_inference_steps": 1000, "timeout_s": 0.3}
    events = events_of(stream(api, url, body))
    name, data = events[-1]
    assert name == ("error" if url == IMAGES else None)
    assert data["error"]["code"] == "deadline_exceeded"
    assert "timeout_s" in data["error"]["message"]
    assert all("choices" in data for _, data in events[:-1])
    status = served.status()
    assert (status.running, status.pages.used) == ((), 0)
