"""POST /v1/chat/completions against a real engine."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from golden_cases import GOLDEN
from pictures import decode_b64, decode_url

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.server.answers import ChatAnswer
from kit.server.app import create_app
from kit.server.settings import ServerSettings

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
            "messages[0].content[1].image_url",
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
        *(
            (f"messages[0].content[0].{param}", {"messages": [{"role": "user", "content": [part]}]})
            for param, part in (
                ("text", {"type": "text"}),
                ("image_url", {"type": "image_url", "image_url": None}),
                ("image_url.url", {"type": "image_url", "image_url": {"url": 7}}),
                ("mood", {"type": "text", "text": "a cat", "mood": "x"}),
            )
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


def data_url(name: str) -> str:
    return "data:image/png;base64," + base64.b64encode((GOLDEN / name).read_bytes()).decode()


def image_part(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def of_user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_images_of_user_messages_are_the_references_in_order(
    api: TestClient, served: ImageEngine
) -> None:
    first, second = (image_part(data_url(f"ref_image_{j}.png")) for j in range(2))
    text = {"type": "text", "text": "make it blue"}
    fields = {"num_inference_steps": 1, "seed": 7, "guidance_scale": 1, "size": "256x256"}
    shown = {}
    for order, messages in {
        "one message": [of_user(first, text, second)],
        "two messages": [
            of_user(first),
            of_user(text, {**second, "image_url": data_url("ref_image_1.png")}),
        ],
        "other order": [of_user(second, first, text)],
    }.items():
        answer = api.post(URL, json={**BODY, **fields, "messages": messages})
        assert answer.status_code == 200, answer.text
        shown[order] = answer.json()["choices"][0]
    record = shown["one message"]["replay"]["record"]["request"]
    assert record["prompt"] == "make it blue"
    assert [(i["width"], i["height"]) for i in record["images"]] == [(150, 150), (220, 110)]
    contents = {order: choice["message"]["content"] for order, choice in shown.items()}
    assert contents["one message"] != contents["other order"]
    images = tuple(
        served.preprocessor.read_image(io.BytesIO((GOLDEN / f"ref_image_{j}.png").read_bytes()), "")
        for j in range(2)
    )
    sampling = SamplingParams(
        height=256, width=256, num_inference_steps=1, seed=7, guidance_scale=1.0
    )
    result = served.generate(GenerationRequest("make it blue", sampling, images=images))
    assert shown["one message"]["replay"]["record"]["image"] == asdict(result.replay.image)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://169.254.169.254/x", "this server fetches nothing"),
        ("file:///etc/passwd", "this server fetches nothing"),
        ("data:text/plain;base64,AAAA", "expected data:image/png;base64"),
        ("data:image/png,AAAA", "expected data:image/png;base64"),
        ("data:image/png;base64,A*A", "is no base64"),
        ("data:image/png;base64,", "got an empty file"),
        ("data:image/png;base64,AAAA", "cannot be read as a png"),
        (data_url("ref_image_0.png")[:-400], "cannot be read as a png"),
    ],
    ids=lambda value: value[-28:],
)
def test_an_image_that_cannot_be_read_names_its_part(api: TestClient, url: str, words: str) -> None:
    error = refuse(api, messages=[of_user({"type": "text", "text": "x"}, image_part(url))])
    assert error["param"] == "messages[0].content[1].image_url"
    assert words in error["message"]


def test_the_broken_one_of_several_images_is_named(api: TestClient) -> None:
    right, broken = (image_part(data_url("ref_image_0.png")[:end]) for end in (None, -400))
    error = refuse(api, messages=[of_user(right), of_user(right, broken)])
    assert error["param"] == "messages[1].content[1].image_url"


def test_a_fourth_image_is_refused(api: TestClient) -> None:
    parts = [image_part(data_url("ref_image_0.png"))] * 4
    error = refuse(api, messages=[USER, of_user(*parts)])
    assert error["param"] == "messages[1].content[3].image_url"
    assert "at most 3" in error["message"]


def test_images_stand_in_messages_of_the_user(api: TestClient) -> None:
    part = image_part(data_url("ref_image_0.png"))
    error = refuse(api, messages=[{"role": "system", "content": [part]}, USER])
    assert error["param"] == "messages[0].content[0]"
    assert "of the role system; send text parts" in error["message"]


def test_a_checkpoint_that_takes_none_refuses_images(text_checkpoint: Path) -> None:
    engine = ImageEngine(text_checkpoint, load_config(text_checkpoint))
    messages = [of_user({"type": "text", "text": "x"}, image_part(data_url("ref_image_0.png")))]
    with TestClient(create_app(engine, ServerSettings("painter"))) as bare:
        answer = bare.post(URL, json={"messages": messages})
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[1].image_url"
    assert "this checkpoint takes no reference images" in error["message"]


def test_detail_is_named_as_without_effect(api: TestClient) -> None:
    part = image_part(data_url("ref_image_0.png"), detail="high")
    body = {
        **BODY,
        "num_inference_steps": 1,
        "messages": [of_user(part, {"type": "text", "text": "x"})],
    }
    assert "detail has no effect on a picture" in api.post(URL, json=body).json()["warnings"]


def test_a_prompt_is_called_by_what_a_conversation_has(api: TestClient) -> None:
    error = refuse(api, messages=[{"role": "user", "content": " "}])
    assert error["message"].startswith("messages (the texts of the user): expected text")


def test_a_model_that_is_not_served_is_not_found(api: TestClient) -> None:
    answer = api.post(URL, json={**BODY, "model": "gpt-image-1"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'painter'" in error["message"]
