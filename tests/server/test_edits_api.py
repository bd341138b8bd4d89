"""POST /v1/images/edits: forms as clients write them, what they draw, and what is refused."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from golden_cases import GOLDEN
from PIL import Image

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.server.app import create_app
from kit.server.settings import ServerSettings

URL = "/v1/images/edits"


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


ONE = [("image", ("a.png", png(), "image/png"))]
SEVERAL = [("image[]", (name, png())) for name in ("a.png", "b.png")]
REFERENCES = [("image[]", (n, golden(n))) for n in ("ref_image_0.png", "ref_image_1.png")]
QUICK = {"num_inference_steps": "1", "seed": "7", "guidance_scale": "1"}


def post(
    api: TestClient, files: list[tuple[str, Any]], **fields: Any
) -> tuple[int, dict[str, Any]]:
    answer = api.post(URL, data={"prompt": "a cat", **fields}, files=files)
    assert answer.headers["content-type"] == "application/json"
    if answer.status_code >= 500:
        assert answer.headers["x-should-retry"] == "false"
    error: dict[str, Any] = answer.json().get("error")
    return answer.status_code, error


def edit(api: TestClient, files: list[tuple[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = api.post(URL, data={"prompt": "make it blue", **QUICK, **fields}, files=files)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def pixels(data: dict[str, Any]) -> bytes:
    with Image.open(io.BytesIO(base64.b64decode(data["b64_json"]))) as image:
        return image.tobytes()


def test_an_edit_is_what_the_engine_draws_from_its_images(
    api: TestClient, served: ImageEngine
) -> None:
    answer = edit(api, REFERENCES, size="256x256", n="2", reference_seed="5")
    images = tuple(
        served.preprocessor.read_image(io.BytesIO(golden(f"ref_image_{j}.png")), "image")
        for j in range(2)
    )
    sampling = SamplingParams(
        height=256, width=256, num_inference_steps=1, seed=8, guidance_scale=1.0
    )
    request = GenerationRequest("make it blue", sampling, images=images, reference_seed=5)
    result = served.generate(request)
    assert pixels(answer["data"][1]) == result.image.tobytes()
    assert [data["sampling"]["reference_seed"] for data in answer["data"]] == [5, 5]
    assert [data["seed"] for data in answer["data"]] == [7, 8]
    named = answer["data"][0]["replay"]["record"]["request"]["images"]
    assert named == [asdict(image.source) for image in images]
    # Both 256 and 11 x 21 latents, 64 patches and 6 tokens around each; two pictures.
    tokens = 2 * (256 + 231 + 2 * 70)
    assert answer["usage"]["input_tokens_details"]["image_tokens"] == tokens
    assert answer["metrics"]["reference_tokens"] == tokens // 2
    assert answer["metrics"]["reference_time_s"] > 0


def test_the_order_of_images_counts(api: TestClient) -> None:
    one = edit(api, REFERENCES, size="256x256")
    other = edit(api, REFERENCES[::-1], size="256x256")
    assert pixels(one["data"][0]) != pixels(other["data"][0])


@pytest.mark.parametrize("size", [{}, {"size": "auto"}])
def test_a_size_that_is_not_named_is_that_of_the_first_image(
    api: TestClient, size: dict[str, str]
) -> None:
    assert edit(api, REFERENCES[1:], **size)["size"] == "336x176"


def test_a_stream_has_the_events_of_edits(api: TestClient) -> None:
    fields = {"prompt": "make it blue", **QUICK, "num_inference_steps": "2"}
    fields |= {"stream": "true", "partial_images": "1"}
    answer = api.post(URL, data=fields, files=ONE)
    names = [line for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == ["event: image_edit.partial_image", "event: image_edit.completed"]
    assert '"type":"image_edit.completed"' in answer.text


@pytest.mark.parametrize(
    ("files", "fields"),
    [
        (ONE, {"model": "painter", "response_format": "b64_json"}),
        (ONE, {"negative_prompt": "", "vae_use_tiling": "false", "input_fidelity": "high"}),
        (ONE, {"lora": "{}", "num_frames": "1", "partial_images": "0"}),
    ],
    ids=["names", "neutral", "neutral as JSON"],
)
def test_right_forms(api: TestClient, files: list[tuple[str, Any]], fields: dict[str, Any]) -> None:
    edit(api, files, **fields)


def test_a_checkpoint_that_takes_none_refuses_every_edit(text_checkpoint: Path) -> None:
    """Nothing is decoded, and no engine has to run for that."""
    engine = ImageEngine(text_checkpoint, load_config(text_checkpoint))
    with TestClient(create_app(engine, ServerSettings("painter"))) as bare:
        file = ("image[]", ("a.png", b"is not looked at"))
        status, error = post(bare, [file])
        assert post(bare, [file] * 2) == (status, error), "it is no fault of one of them"
    assert (status, error["param"], error["code"]) == (501, "image", "unsupported")
    assert "this checkpoint takes no reference images: " in error["message"]
    assert "HunyuanImage-3.0-Instruct" in error["message"]


@pytest.mark.parametrize("mask", [("m.png", png()), (None, "data:image/png;base64,")])
@pytest.mark.parametrize("name", ["mask", "markup", "mask_image", "mask[]"])
def test_masks_are_refused(api: TestClient, name: str, mask: tuple[Any, ...]) -> None:
    status, error = post(api, [*ONE, (name, mask)])
    assert (status, error["param"]) == (400, name.removesuffix("[]"))
    assert "the model takes no mask" in error["message"]


@pytest.mark.parametrize("name", ["images", "image_url", "input_image", "Image", "init_images[]"])
def test_a_file_by_a_name_of_elsewhere_is_sent_to_image(api: TestClient, name: str) -> None:
    status, error = post(api, [(name, ("a.png", png()))])
    assert (status, error["code"]) == (400, "unknown_parameter")
    assert "reference images are files `image` of a form" in error["message"]


def test_a_file_in_the_place_of_another_field_is_refused_by_what_that_takes(
    api: TestClient,
) -> None:
    file = ("a.png", png())
    for name, words in (
        ("reference_image", "but reference_image is not supported: send the file as image"),
        ("prompt", "but prompt is text"),
    ):
        status, error = post(api, [*ONE, (name, file)])
        assert (status, error["param"], error["message"]) == (
            400,
            name,
            f"{name}: got a file, {words}",
        )


@pytest.mark.parametrize("name", ["image[0]", "image[vase]"])
def test_files_have_no_keys(api: TestClient, name: str) -> None:
    """Sorted by their keys they would be other references than in the order of the form."""
    status, error = post(api, [(name, ("a.png", png()))])
    assert (status, error["param"]) == (400, "image")
    assert f"got {name!r}" in error["message"]


@pytest.mark.parametrize("fields", [{"extra_body": '{"seed": 3}'}, {"extra_body[seed]": "3"}])
def test_a_form_has_no_second_level(api: TestClient, fields: dict[str, str]) -> None:
    status, error = post(api, ONE, **fields)
    assert (status, error["param"]) == (400, "extra_body")
    assert "send the fields themselves" in error["message"]


@pytest.mark.parametrize(
    ("param", "files", "fields"),
    [
        ("image", [ONE[0]] * 4, {}),
        ("image", [("image", ("a.png", b"no picture"))], {}),
        ("image", [("image", ("a.png", b""))], {}),
        ("image[1]", [*ONE, ("image", ("b.png", b"no picture"))], {}),
        ("image[0]", [("image[]", ("b.png", b"")), *SEVERAL], {}),
        ("image[2]", [*SEVERAL, ("image[]", ("c.png", png((170, 10))))], {}),
        ("image", [("image", ("a.png", png((170, 10))))], {}),
        ("template", ONE, {"template": "pretrain"}),
        ("prompt", [*ONE, ("prompt", ("p.txt", b"x"))], {}),
        ("prompt", ONE, {"prompt": " "}),
        ("n", ONE, {"n": "0"}),
        ("n", ONE, {"n": "two"}),
        ("seed", ONE, {"seed": "1.5"}),
        ("seed", ONE, {"seed": "1.0"}),
        ("true_cfg_scale", ONE, {"true_cfg_scale": " 1"}),
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
    assert param in error["message"]


@pytest.mark.parametrize(
    "text", [" 7", "7\n", "07", "+7", "1_0", "٧", ".5", "0x7", "two", "7" * 5000]
)
@pytest.mark.parametrize("field", ["seed", "guidance_scale"])
def test_a_number_is_written_as_in_json(api: TestClient, field: str, text: str) -> None:
    status, error = post(api, ONE, **{field: text})
    assert (status, error["param"]) == (400, field)
    written = f"{field}: got {text!r:.100}, expected a number as JSON writes it, such as 7 or 2.5"
    assert error["message"] == written


@pytest.mark.parametrize("text", ["True", "FALSE", "1", "0", "yes", "on", "t", " true", "null", ""])
def test_a_boolean_is_written_as_in_json(api: TestClient, text: str) -> None:
    status, error = post(api, ONE, stream=text)
    assert (status, error["param"]) == (400, "stream")
    assert error["message"] == f"stream: got {text!r}, expected true or false"


def test_numbers_of_a_form_are_those_of_a_body(api: TestClient) -> None:
    answer = edit(api, ONE, seed="9223372036854775807", guidance_scale="1e-1", stream="false")
    sampling = answer["data"][0]["sampling"]
    assert (sampling["seed"], sampling["guidance_scale"]) == (2**63 - 1, 0.1)


def test_text_that_is_no_utf8_is_latin1(api: TestClient) -> None:
    answer = edit(api, ONE, prompt="a blue Gef\xe4\xdf".encode("latin-1"))
    assert answer["data"][0]["replay"]["record"]["request"]["prompt"] == "a blue Gefäß"


def test_a_form_without_an_image_is_refused(api: TestClient) -> None:
    content = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na cat\r\n--x--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = api.post(URL, content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "image")
    assert "image: is missing" in answer.json()["error"]["message"]


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
        max_form_files=5,
        max_image_bytes=400,
        max_image_pixels=100,
        max_form_fields=3,
        max_form_field_bytes=2048,
    )
    with TestClient(create_app(served, settings)) as api:
        assert post(api, SEVERAL, n="1", seed="1")[0] == 200
        many = [("image[]", (f"{i}.png", png())) for i in range(4)]
        for files, fields, words in (
            (many, {}, "at most 3"),
            (many * 2, {}, "files"),
            ([("image", ("a.png", png((11, 10))))], {}, "pixels"),
            ([("image", ("a.png", png() + bytes(400)))], {}, "bytes"),
            (ONE, {"cot_text": "x" * 2049}, "2KB"),
            (ONE, {"n": "1", "seed": "1", "size": "auto"}, "fields"),
        ):
            status, error = post(api, files, **fields)
            assert status == 400, error
            assert words in error["message"]
