"""POST /v1/chat/completions against a real engine."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pictures import decode_b64, decode_url

from kit.server.answers import ChatAnswer

URL = "/v1/chat/completions"
USER = {"role": "user", "content": "a cat"}
BODY = {
    "messages": [USER],
    "modalities": ["image"],
    "num_inference_steps": 1,
    "guidance_scale": 1,
    "seed": 4,
}


def ask(api: TestClient, **fields: Any) -> dict[str, Any]:
    answer = api.post(URL, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def refuse(api: TestClient, **fields: Any) -> dict[str, Any]:
    answer = api.post(URL, json={**BODY, **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_each_choice_is_a_picture_with_its_facts(api: TestClient) -> None:
    body = ask(api, n=2, stop=["x"])
    assert ChatAnswer.model_validate_json(ChatAnswer(**body).model_dump_json())
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["seed"] for choice in body["choices"]] == [4, 5]
    assert body["sampling"]["seed"] == 4
    pictures = [decode_url(choice["message"]["content"]) for choice in body["choices"]]
    assert pictures[0].tobytes() != pictures[1].tobytes()
    assert body["usage"]["completion_tokens"] == 2 * 257
    assert body["warnings"] == ["stop has no effect on a picture"]


def test_chat_and_images_draw_the_same_picture(api: TestClient) -> None:
    chat = ask(api, extra_body={"height": 128, "width": 512})
    fields = {name: BODY[name] for name in ("num_inference_steps", "guidance_scale", "seed")}
    images = api.post(
        "/v1/images/generations", json={"prompt": "a cat", "size": "512x128", **fields}
    ).json()
    choice, data = chat["choices"][0], images["data"][0]
    first, second = decode_url(choice["message"]["content"]), decode_b64(data["b64_json"])
    assert first.size == second.size == (512, 128)
    assert first.tobytes() == second.tobytes()
    for name in ("sampling", "replay"):
        assert choice[name] == data[name]
    assert choice["metrics"].keys() == data["metrics"].keys()
    assert chat["metrics"].keys() == images["metrics"].keys()


def test_messages_become_prompt_and_system_prompt(api: TestClient) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "cat"}]
    messages = [
        {"role": "system", "content": "Draw."},
        {"role": "developer", "content": "Well."},
        {"role": "user", "content": parts, "name": "me"},
        USER,
    ]
    body = ask(api, messages=messages, output_format="webp")
    recorded = body["choices"][0]["replay"]["record"]["request"]
    assert recorded["prompt"] == "a\ncat\na cat"
    assert recorded["system_prompt"] == "Draw.\nWell."
    assert decode_url(body["choices"][0]["message"]["content"]).format == "WEBP"


def test_absent_modalities_are_named(api: TestClient) -> None:
    [warning] = ask(api, modalities=None)["warnings"]
    assert "modalities" in warning


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("modalities", {"modalities": []}),
        ("modalities", {"modalities": ["text"]}),
        ("modalities", {"modalities": ["image", "text"]}),
        ("modalities", {"modalities": ["audio"]}),
        ("modalities", {"modalities": ["video"]}),
        ("modalities", {"modalities": "image"}),
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "user", "content": " "}]}),
        ("messages", {"messages": [{"role": "system", "content": "x"}]}),
        ("messages", {"messages": [{"role": "user", "content": []}]}),
        ("messages", {"messages": [USER] * 257}),
        ("messages[1]", {"messages": [USER, {"role": "assistant", "content": "x"}]}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].mood", {"messages": [{**USER, "mood": "x"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}),
        (
            "messages[0].content[1]",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "like this"},
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
                        ],
                    }
                ]
            },
        ),
        (
            "system_prompt",
            {"messages": [{"role": "system", "content": "a"}, USER], "system_prompt": "b"},
        ),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("prompt", {"prompt": "x"}),
        ("quality", {"quality": "auto"}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_refusals_name_the_field(api: TestClient, param: str, fields: dict[str, Any]) -> None:
    error = refuse(api, **fields)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_an_image_part_is_refused_with_the_reason(api: TestClient) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/x"}}
    error = refuse(api, messages=[{"role": "user", "content": [part]}])
    assert "text-to-image only" in error["message"]


def test_a_prompt_is_called_by_what_a_conversation_has(api: TestClient) -> None:
    error = refuse(api, messages=[{"role": "user", "content": " "}])
    assert error["message"].startswith("messages (the texts of the user): expected text")


def test_a_model_that_is_not_served_is_not_found(api: TestClient) -> None:
    answer = api.post(URL, json={**BODY, "model": "gpt-image-1"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'painter'" in error["message"]
