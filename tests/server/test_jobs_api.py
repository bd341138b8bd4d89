"""Jobs: they outlive their connection, can be watched and cancelled, and are forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_gate import PATIENCE_S
from fastapi.testclient import TestClient
from golden_cases import GOLDEN
from pictures import decode_b64

from kit.api import ImageEngine
from kit.server.app import create_app
from kit.server.settings import ServerSettings

BODY = {"prompt": "a cat", "num_inference_steps": 2, "guidance_scale": 1, "seed": 9}
LONG = {**BODY, "num_inference_steps": 1000}

Serve = Callable[..., TestClient]


@pytest.fixture
def serve(served: ImageEngine) -> Iterator[Serve]:
    """Start an application with settings of its own around the shared engine."""
    clients: list[TestClient] = []

    def start(**settings: Any) -> TestClient:
        client = TestClient(create_app(served, ServerSettings("painter", **settings)))
        client.__enter__()
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.__exit__(None, None, None)


def submit(api: TestClient, body: dict[str, Any]) -> str:
    answer = api.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["status"], job["result"], job["error"]) == ("queued", None, None)
    return str(job["id"])


def wait(api: TestClient, job_id: str, *status: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        job: dict[str, Any] = api.get(f"/v1/jobs/{job_id}").json()
        if job["status"] in status:
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.02)


def test_a_job_gives_the_answer_of_the_images_endpoint(api: TestClient) -> None:
    job_id = submit(api, {**BODY, "n": 2})
    job = wait(api, job_id, "succeeded", "failed")
    assert job["error"] is None
    assert job["progress"] == {"num_images": 2, "num_images_done": 2, "step": 0, "num_steps": 2}
    assert job["created_at"] <= job["ended_at"] < job["expires_at"]
    plain = api.post("/v1/images/generations", json={**BODY, "n": 2}).json()
    result = job["result"]
    assert result.keys() == plain.keys()
    for kept, direct in zip(result["data"], plain["data"], strict=True):
        assert decode_b64(kept["b64_json"]).tobytes() == decode_b64(direct["b64_json"]).tobytes()
        assert kept["replay"] == direct["replay"]


def test_a_job_takes_the_form_of_edits(api: TestClient) -> None:
    form = {
        "prompt": "make it blue",
        "seed": "9",
        "num_inference_steps": "1",
        "guidance_scale": "1",
    }
    files = [("image", ("a.png", (GOLDEN / "ref_image_0.png").read_bytes()))]
    answer = api.post("/v1/jobs", data=form, files=files)
    assert answer.status_code == 202, answer.text
    job = wait(api, answer.json()["id"], "succeeded", "failed")
    direct = api.post("/v1/images/edits", data=form, files=files).json()
    [kept], [wanted] = job["result"]["data"], direct["data"]
    assert len(kept["replay"]["record"]["request"]["images"]) == 1
    assert kept["replay"] == wanted["replay"]


def test_a_form_is_refused_at_once(api: TestClient) -> None:
    image = ("a.png", (GOLDEN / "ref_image_0.png").read_bytes())
    for files, fields, status, param in (
        ({"image": image}, {"stream": "true"}, 400, "stream"),
        ({"image": ("a.png", b"text")}, {}, 400, "image"),
        ({"image": image, "image[]": ("b.png", b"text")}, {}, 400, "image[1]"),
        ({"image": image}, {"seed": "07"}, 400, "seed"),
        ({"other": image}, {}, 400, "other"),
        ({"image": image, "mask": image}, {}, 400, "mask"),
        ({"image": image}, {"sede": "1"}, 400, "sede"),
    ):
        answer = api.post("/v1/jobs", data={"prompt": "a cat", **fields}, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_reference_seed_without_an_image_is_refused(api: TestClient) -> None:
    for url in ("/v1/jobs", "/v1/images/generations"):
        answer = api.post(url, json={**BODY, "n": 2, "reference_seed": 4})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "reference_seed"


def test_a_running_job_tells_its_steps_and_can_be_cancelled(
    api: TestClient, served: ImageEngine
) -> None:
    job_id, behind = submit(api, LONG), submit(api, LONG)
    job = wait(api, job_id, "running")
    assert job["progress"]["num_steps"] == 1000
    assert 0 < job["progress"]["step"] < 1000
    assert api.get(f"/v1/jobs/{behind}").json()["status"] == "queued"
    for one in (behind, job_id):
        cancelled = api.delete(f"/v1/jobs/{one}")
        assert cancelled.status_code == 200
        assert cancelled.json()["status"] == "cancelled"
        assert cancelled.json()["error"]["code"] == "cancelled"
    deadline = time.monotonic() + PATIENCE_S
    while served.status().running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert served.status().pages.used == 0
    assert wait(api, job_id, "cancelled")["result"] is None


def test_cancelling_what_has_ended_changes_nothing(api: TestClient) -> None:
    job_id = submit(api, BODY)
    job = wait(api, job_id, "succeeded")
    assert api.delete(f"/v1/jobs/{job_id}").json() == job


def test_a_job_that_fails_says_why(api: TestClient) -> None:
    job = wait(api, submit(api, {**LONG, "timeout_s": 0.2}), "failed")
    assert job["error"]["code"] == "deadline_exceeded"
    assert job["result"] is None


def test_refusals_come_at_once(api: TestClient) -> None:
    for fields, param in (({"seed": -1}, "seed"), ({"stream": True}, "stream")):
        answer = api.post("/v1/jobs", json={**BODY, **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    missing = api.get("/v1/jobs/job-0")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "job_not_found"
    assert api.delete("/v1/jobs/job-0").status_code == 404


def test_the_oldest_results_are_forgotten_first(serve: Serve) -> None:
    api = serve(max_finished_jobs=1)
    first, second = submit(api, BODY), submit(api, BODY)
    wait(api, second, "succeeded")
    assert api.get(f"/v1/jobs/{first}").status_code == 404
    assert api.get(f"/v1/jobs/{second}").status_code == 200


def test_results_are_bounded_in_bytes_and_in_time(serve: Serve) -> None:
    small = serve(max_job_bytes=1000)
    job_id = submit(small, BODY)
    short = serve(job_ttl_s=0.0)
    also = submit(short, BODY)
    for api, one in ((small, job_id), (short, also)):
        deadline = time.monotonic() + PATIENCE_S
        while api.get(f"/v1/jobs/{one}").status_code != 404:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_server_that_stops_cancels_its_jobs(served: ImageEngine) -> None:
    with TestClient(create_app(served, ServerSettings("painter"))) as api:
        submit(api, LONG)
    deadline = time.monotonic() + PATIENCE_S
    while served.status().running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert served.status().waiting == 0
