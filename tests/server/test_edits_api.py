"""POST /v1/images/edits: forms as clients write them, checked and then refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from kit.api import ImageEngine
from kit.server.app import create_app
from kit.server.settings import ServerSettings

URL = "/v1/images/edits"


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


ONE = [("image", ("a.png", png(), "image/png"))]
SEVERAL = [("image[]", (name, png())) for name in ("a.png", "b.png")]


def post(
    api: TestClient, files: list[tuple[str, Any]], **fields: Any
) -> tuple[int, dict[str, Any]]:
    answer = api.post(URL, data={"prompt": "a cat", **fields}, files=files)
    assert answer.headers["content-type"] == "application/json"
    if answer.status_code >= 500:
        assert answer.headers["x-should-retry"] == "false"
    error: dict[str, Any] = answer.json()["error"]
    return answer.status_code, error


@pytest.mark.parametrize(
    ("files", "fields"),
    [
        (ONE, {}),
        (SEVERAL, {"model": "painter", "n": "2", "size": "512x128", "seed": "7"}),
        ([*ONE, ("mask", ("m.png", png()))], {"response_format": "b64_json", "stream": "true"}),
        (ONE, {"guidance_scale": "2.5", "negative_prompt": "", "vae_use_tiling": "false"}),
        (ONE, {"lora": "{}", "num_frames": "1", "partial_images": "0"}),
    ],
    ids=["one", "several", "mask", "neutral", "neutral as JSON"],
)
def test_a_right_form_is_refused_as_text_to_image_only(
    api: TestClient, files: list[tuple[str, Any]], fields: dict[str, Any]
) -> None:
    status, error = post(api, files, **fields)
    assert status == 501, error
    assert (error["param"], error["code"]) == ("image", "unsupported")
    assert "text-to-image only" in error["message"]


@pytest.mark.parametrize(
    ("param", "files", "fields"),
    [
        ("image", [("mask", ("m.png", png()))], {}),
        ("image", [("image", ("a.png", b"no picture"))], {}),
        ("image", [("image", ("a.png", b""))], {}),
        ("mask", [*ONE, ("mask", ("m.png", b"x"))], {}),
        ("mask", [*ONE, ("mask", ("m.png", png())), ("mask", ("m.png", png()))], {}),
        ("prompt", [*ONE, ("prompt", ("p.txt", b"x"))], {}),
        ("prompt", ONE, {"prompt": " "}),
        ("n", ONE, {"n": "0"}),
        ("n", ONE, {"n": "two"}),
        ("seed", ONE, {"seed": "1.5"}),
        ("guidance_scale", ONE, {"guidance_scale": "nan"}),
        ("guidance_scale", ONE, {"guidance_scale": "1e999"}),
        ("stream", ONE, {"stream": "maybe"}),
        ("size", ONE, {"size": "12x"}),
        ("size", ONE, {"size": "1536x864"}),
        ("strength", ONE, {"strength": "0.5"}),
        ("url", ONE, {"url[]": ["http://127.0.0.1/a.png", "file:///etc/passwd"]}),
        ("lora", ONE, {"lora[name]": "/etc/passwd"}),
        ("seed", ONE, {"seed[]": ["1", "2"]}),
        ("seed", ONE, {"seed": ["1", "2"]}),
        ("lora", ONE, {"lora[]": "a", "lora[b]": "c"}),
        ("sede", ONE, {"sede": "1"}),
        ("se]ed", ONE, {"se]ed": "1"}),
        ("response_format", ONE, {"response_format": "url"}),
        ("background", ONE, {"background": "transparent"}),
        ("extra_params", ONE, {"extra_params": "[" * 100_000}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_form_is_refused_by_its_field(
    api: TestClient, param: str, files: list[tuple[str, Any]], fields: dict[str, Any]
) -> None:
    status, error = post(api, files, **fields)
    assert status == 400, error
    assert error["param"] == param


def test_a_model_that_is_not_served_is_not_found(api: TestClient) -> None:
    status, error = post(api, ONE, model="gpt-image-1")
    assert (status, error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b'{"prompt": "a cat"}', "application/json", 415),
        (b"prompt=a+cat", "application/x-www-form-urlencoded", 415),
        (b"", "multipart/form-data", 400),
        (b"--x\r\nrubbish", "multipart/form-data; boundary=x", 400),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"", "", 415),
    ],
)
def test_what_is_no_form_is_refused(
    api: TestClient, content: bytes, content_type: str, status: int
) -> None:
    answer = api.post(URL, content=content, headers={"content-type": content_type})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_limits_of_a_form(served: ImageEngine) -> None:
    settings = ServerSettings(
        "painter",
        max_images=2,
        max_image_bytes=400,
        max_image_pixels=100,
        max_form_fields=3,
        max_form_field_bytes=2048,
    )
    with TestClient(create_app(served, settings)) as api:
        assert post(api, SEVERAL)[0] == 501
        many = [("image[]", (f"{i}.png", png())) for i in range(3)]
        for files, fields, words in (
            (many, {}, "at most 2"),
            (many * 3, {}, "files"),
            ([("image", ("a.png", png((11, 10))))], {}, "pixels"),
            ([("image", ("a.png", png() + bytes(400)))], {}, "bytes"),
            (ONE, {"cot_text": "x" * 2049}, "2KB"),
            (ONE, {"n": "1", "seed": "1", "size": "auto"}, "fields"),
        ):
            status, error = post(api, files, **fields)
            assert status == 400, error
            assert words in error["message"]
