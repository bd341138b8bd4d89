"""POST /v1/images/generations against a real engine."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pictures import decode_b64

from kit.engine.images import read_picture
from kit.server.answers import ImagesAnswer

URL = "/v1/images/generations"
JSON = {"content-type": "application/json"}
BODY = {"prompt": "a cat", "num_inference_steps": 2, "guidance_scale": 1}


@pytest.fixture(scope="module")
def pair(api: TestClient) -> dict[str, Any]:
    """The answer to a request for two pictures."""
    answer = api.post(URL, json={**BODY, "n": 2, "seed": 5, "user": "me"})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_an_answer_is_what_the_document_says(pair: dict[str, Any]) -> None:
    assert ImagesAnswer.model_validate_json(ImagesAnswer(**pair).model_dump_json())
    assert (pair["model"], pair["size"], pair["output_format"]) == ("painter", "256x256", "png")
    assert pair["safety_identifier"] == "me"
    usage = pair["usage"]
    assert usage["output_tokens"] == 2 * 257
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_each_picture_of_n_can_be_made_again_alone(api: TestClient, pair: dict[str, Any]) -> None:
    assert [image["seed"] for image in pair["data"]] == [5, 6]
    alone = api.post(URL, json={**BODY, "seed": pair["data"][1]["seed"]}).json()["data"][0]
    assert (
        decode_b64(alone["b64_json"]).tobytes() == decode_b64(pair["data"][1]["b64_json"]).tobytes()
    )
    assert alone["replay"] == pair["data"][1]["replay"]
    first = decode_b64(pair["data"][0]["b64_json"])
    assert first.tobytes() != decode_b64(alone["b64_json"]).tobytes()


def test_the_record_in_the_answer_stands_in_the_file(pair: dict[str, Any], tmp_path: Path) -> None:
    image = pair["data"][0]
    file = tmp_path / "x.png"
    decoded = decode_b64(image["b64_json"])
    assert decoded.size == (256, 256)
    file.write_bytes(base64.b64decode(image["b64_json"]))
    record = read_picture(file).record
    assert record.request.prompt == "a cat"
    assert record.request.sampling.seed == image["seed"]
    assert record.image.sha256 == image["replay"]["record"]["image"]["sha256"]


def test_metrics_tell_where_the_time_went(pair: dict[str, Any]) -> None:
    parts, whole = [image["metrics"] for image in pair["data"]], pair["metrics"]
    assert parts[0].keys() == parts[1].keys() == whole.keys()
    assert [len(part["step_times_s"]) for part in parts] == [2, 2]
    assert whole["step_times_s"] == parts[0]["step_times_s"] + parts[1]["step_times_s"]
    assert whole["decode_time_s"] == sum(part["decode_time_s"] for part in parts)
    assert whole["total_time_s"] == parts[1]["total_time_s"] > parts[0]["total_time_s"]
    for part in parts:
        assert part["first_step_time_s"] == part["step_times_s"][0] > 0
        assert part["encode_time_s"] > 0
        assert part["num_pages"] > 0 == part["preview_time_s"]
        assert part["peak_memory_bytes"] > 1 << 20
        assert part["tokens_written"] == [
            part["prefix_tokens"] + part["target_tokens"],
            part["target_tokens"],
        ]


def test_a_format_and_a_size_are_as_asked(api: TestClient) -> None:
    body = {**BODY, "output_format": "webp", "num_inference_steps": 1, "size": "512x128"}
    answer = api.post(URL, json=body).json()
    image = decode_b64(answer["data"][0]["b64_json"])
    assert image.format == "WEBP"
    assert (image.size, answer["size"]) == ((512, 128), "512x128")
    assert answer["output_format"] == "webp"


def test_a_lower_quality_makes_a_smaller_file(api: TestClient) -> None:
    body = {**BODY, "output_format": "jpeg", "num_inference_steps": 1, "seed": 1}
    small, large = (
        api.post(URL, json={**body, "output_compression": quality}).json()["data"][0]["b64_json"]
        for quality in (0, 100)
    )
    assert len(small) < len(large) / 2
    assert decode_b64(small).format == decode_b64(large).format == "JPEG"


def test_a_blank_body_runs_with_the_deployments_defaults(api: TestClient) -> None:
    answer = api.post(URL, json={"prompt": "a cat", "model": "org/painter"}).json()
    assert answer["sampling"]["num_inference_steps"] == 4
    assert answer["data"][0]["seed"] == answer["sampling"]["seed"] < 2**31
    assert answer["model"] == "painter"
    assert answer["warnings"] == []


@pytest.mark.parametrize(
    ("param", "fields", "words"),
    [
        ("prompt", {"prompt": ""}, "expected text"),
        ("prompt", {"prompt": " \n"}, "expected text"),
        ("prompt", {"prompt": "a \ud800"}, "surrogate"),
        ("prompt", {"prompt": "word " * 6000}, "tokens"),
        ("size", {"size": "1536x864"}, "256x256"),
        ("size", {"size": "1x1"}, "256x256"),
        ("size", {"height": 250, "width": 256}, "256x256"),
        ("width", {"height": 256}, "width"),
        ("height", {"height": 0, "width": 256}, "from 1"),
        ("num_inference_steps", {"num_inference_steps": 0}, "from 1 to 1000"),
        ("num_inference_steps", {"num_inference_steps": -1}, "from 1 to 1000"),
        ("num_inference_steps", {"num_inference_steps": 1001}, "from 1 to 1000"),
        ("num_inference_steps", {"num_inference_steps": 1.5}, "integer"),
        ("num_inference_steps", {"num_inference_steps": "20"}, "integer"),
        ("num_inference_steps", {"num_inference_steps": True}, "integer"),
        ("num_inference_steps", {"extra_body": {"num_inference_steps": 3}}, "send one of them"),
        ("num_inference_steps", {"extra_body": {"num_inference_steps": "0"}}, "integer"),
        ("flow_shift", {"extra_body": {"flow_shift": -1}}, "from 0.01 to 100"),
        ("guidance_scale", {"guidance_scale": 101}, "from 0 to 100"),
        ("guidance_scale", {"guidance_scale": -0.1}, "from 0 to 100"),
        ("flow_shift", {"flow_shift": 5e-324}, "from 0.01 to 100"),
        ("seed", {"seed": -1}, "from 0"),
        ("seed", {"seed": 2**63}, "from 0"),
        ("seed", {"seed": 2**63, "n": 2}, "from 0"),
        ("timeout_s", {"timeout_s": 0}, "above 0"),
        ("template", {"template": "chat"}, "pretrain"),
        ("cot_text", {"cot_text": "x", "template": "pretrain"}, "template"),
        ("n", {"n": 11}, "from 1 to 10"),
        ("sede", {"sede": 1}, "did you mean 'seed'"),
        *(
            (
                name,
                {name: "x"},
                "files `image` of a form (multipart/form-data) for /v1/images/edits",
            )
            for name in ("image", "images", "image[]", "input_image", "reference_images")
        ),
        ("mask", {"mask": "x"}, "the model takes no mask"),
        ("mask_image", {"extra_body": {"mask_image": "x"}}, "the model takes no mask"),
        ("xyzzy", {"xyzzy": "x"}, "it is no field of this API"),
        ("messages", {"messages": []}, "not in this place"),
        ("response_format", {"extra_body": {"response_format": "url"}}, "beside extra_body"),
        ("extra_body", {"extra_body": 1}, "extra_body"),
        ("extra_body", {"extra_body": {"extra_body": {}}}, "beside extra_body"),
        ("sede", {"extra_body": {"sede": 1}}, "did you mean 'seed'"),
        ("stepz", {"extra_body": {"stepz": 1}}, "unknown field"),
    ],
)
def test_refusals_name_the_field(
    api: TestClient, param: str, fields: dict[str, Any], words: str
) -> None:
    # json.dumps, because no client of today writes half a surrogate pair
    answer = api.post(URL, content=json.dumps({**BODY, **fields}), headers=JSON)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_numbers_that_are_none_are_refused(api: TestClient, number: str) -> None:
    for name in ("guidance_scale", "flow_shift", "timeout_s"):
        answer = api.post(URL, content=f'{{"prompt": "a cat", "{name}": {number}}}', headers=JSON)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '"x"', "\xff", "[" * 1000, '{"n": 1' + "0" * 5000 + "}"]
)
def test_what_is_no_object_is_refused(api: TestClient, body: str) -> None:
    answer = api.post(URL, content=body.encode("latin-1"), headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_text_of_another_encoding_is_told_so(api: TestClient) -> None:
    answer = api.post(URL, content=b'{"prompt": "\xff"}', headers=JSON)
    assert answer.status_code == 400
    assert "UTF-8" in answer.json()["error"]["message"]


def test_json_without_its_content_type_is_told_so(api: TestClient) -> None:
    answer = api.post(URL, content='{"prompt": "a cat"}')
    assert answer.status_code == 400
    assert "Content-Type" in answer.json()["error"]["message"]
