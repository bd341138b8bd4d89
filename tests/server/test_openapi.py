"""The API's document against the API: schemathesis makes requests from it and checks answers."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
import schemathesis
from engine_gate import PATIENCE_S
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from kit.api import ImageEngine
from kit.server.app import create_app
from kit.server.protocol import ChatCompletionBody, ImageEditForm, ImageGenerationBody
from kit.server.settings import ServerSettings

# Fields that contradict each other are refused, which a schema cannot say.
EXCLUDED: list[CheckFunction] = [positive_data_acceptance]
LIMITED = {"num_inference_steps", "n", "num_outputs_per_prompt", "partial_images", "timeout_s"}
EXAMPLES = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


# The document does not depend on the engine, and test cases are made before there is one.
DOCUMENT = create_app(cast(ImageEngine, None), ServerSettings("painter")).openapi()
QUICK = schemathesis.openapi.from_dict(DOCUMENT)
QUICK.config.phases.coverage.enabled = False
CORNERS = schemathesis.openapi.from_dict(DOCUMENT)
# Of a form with files schemathesis may make what its own validator cannot read (a `Binary`), by
# chance the more often the more it draws: the quick test draws forms.
CORNERS.config.phases.fuzzing.enabled = False
FIELDS = DOCUMENT["components"]["schemas"]["ImageFields"]["properties"]


@pytest.fixture(scope="module")
def app(served: ImageEngine) -> FastAPI:
    return create_app(served, ServerSettings("painter"))


@QUICK.parametrize()
@settings(EXAMPLES, max_examples=8)
def test_answers_are_as_documented(case: schemathesis.Case[Any], app: FastAPI) -> None:
    check(case, app)


@pytest.mark.long
@pytest.mark.timeout(1800)
@CORNERS.parametrize()
@settings(EXAMPLES)
def test_answers_are_as_documented_in_every_corner(
    case: schemathesis.Case[Any], app: FastAPI
) -> None:
    check(case, app)


def check(case: schemathesis.Case[Any], app: FastAPI) -> None:
    """Send a case that is not slow on purpose, and check its answer."""
    if case.path == "/v1/kv":
        case.query = {}  # its stream ends with the server
    if isinstance(case.body, dict):
        for name in LIMITED & case.body.keys():
            value: Any = case.body[name]
            # What is of another type or out of range stays: it must be refused.
            if type(value) in (int, float) and 0 < value <= FIELDS[name]["maximum"]:
                case.body[name] = None if name == "timeout_s" else 1  # its end would be 504
    case.operation.schema.app = app
    response = case.call(app=app, timeout=PATIENCE_S)
    if response.status_code == 202:
        # Nobody waits for a job, and a full queue would answer 503.
        TestClient(app).delete(f"{case.path}/{response.json()['id']}")
    excluded = [*EXCLUDED, not_a_server_error] if response.status_code == 501 else EXCLUDED
    if case.media_type == "multipart/form-data":
        # A form is text: the word null, which no field takes, is sent as null is.
        excluded = [*excluded, negative_data_rejection]
    case.validate_response(response, excluded_checks=excluded)


def test_nothing_is_left_of_it(served: ImageEngine) -> None:
    """Runs after the tests above; the jobs that they left are done or cancelled by then."""
    deadline = time.monotonic() + PATIENCE_S
    while served.status().running:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    status = served.status()
    assert (status.waiting, status.admitted, status.pages.used, status.fault) == (0, 0, 0, None)


def test_the_document_names_every_field_and_every_kind_of_error(api: TestClient) -> None:
    document = api.get("/openapi.json").json()
    assert document == DOCUMENT
    models = document["components"]["schemas"]
    for model in (ImageGenerationBody, ChatCompletionBody):
        assert models[model.__name__]["properties"].keys() == model.model_fields.keys()
        assert models[model.__name__]["additionalProperties"] is False
    edits = document["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]
    shown = edits["multipart/form-data"]["schema"]["properties"].keys()
    assert {"image", "image[]", "prompt", "seed", "size"} <= shown
    assert shown - {"image", "image[]"} <= ImageEditForm.model_fields.keys()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            assert "422" not in answers, f"{method} {path}"
            assert {"4XX", "5XX"} <= answers.keys(), f"{method} {path}"


def test_ranges_in_the_document_are_those_that_are_checked(api: TestClient) -> None:
    fields = api.get("/openapi.json").json()["components"]["schemas"]["ImageFields"]["properties"]
    url, body = "/v1/images/generations", {"prompt": "a cat"}
    checked = 0
    for name, field in fields.items():
        for keyword, step in (("minimum", -1), ("maximum", 1)):
            if keyword in field and name not in ("height", "width"):
                value = field[keyword] + step
                extra: dict[str, Any] = (
                    {"output_format": "jpeg"} if name == "output_compression" else {}
                )
                extra |= {"stream": True} if name == "partial_images" else {}
                answer = api.post(url, json={**body, **extra, name: value})
                assert answer.status_code == 400, f"{name}={value}: {answer.text[:200]}"
                assert answer.json()["error"]["param"] in (name, "n")
                checked += 1
    assert checked >= 14
