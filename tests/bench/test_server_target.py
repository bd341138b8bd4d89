"""The client of a server: what counts as a picture, what counts as which failure."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

import pytest
from bench_loads import small_load
from images_stub import Reply, answer, images_server, paint, png

from bench.harness.jobs import Job, job
from bench.harness.server_target import ServerTarget, TargetError
from bench.harness.target import Answer
from kit.errors import ConfigError


def one_job(**changes: Any) -> Job:
    return job(small_load(**changes), 0)


def ask(reply: Reply, one: Job) -> Answer:
    with images_server(reply) as url, closing(ServerTarget(url)) as target:
        return target.ask(one)


def test_the_fields_that_every_server_names_alike() -> None:
    seen: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        seen.append(body)
        return paint(body)

    found = ask(reply, one_job(n=2))
    assert (found.outcome, found.message) == ("ok", None)
    assert seen == [
        {
            "prompt": "a red vase",
            "n": 2,
            "size": "16x16",
            "response_format": "b64_json",
            "num_inference_steps": 2,
            "guidance_scale": 5.0,
            "seed": 7,
        }
    ]


def test_the_hash_is_that_of_the_pixels() -> None:
    assert ask(paint, one_job()).sha256 == ask(paint, one_job()).sha256
    assert ask(paint, one_job()).sha256 != ask(paint, one_job(first_seed=8)).sha256


@pytest.mark.parametrize(
    ("status_and_body", "outcome", "message"),
    [
        ((200, b"a text"), "no_picture", "JSONDecodeError"),
        ((200, b"{}"), "no_picture", "KeyError"),
        ((200, json.dumps({"data": [{"b64_json": None}]}).encode()), "no_picture", "TypeError"),
        ((200, json.dumps({"data": [{"b64_json": "no"}]}).encode()), "no_picture", "Error"),
        (answer(), "no_picture", "0 pictures instead of 1"),
        (answer(png(16, 16)[:-30]), "no_picture", "Error"),
        (answer(b"\x89PNG\r\n\x1a\n broken"), "no_picture", "UnidentifiedImageError"),
        (answer(png(16, 16), png(16, 16)), "no_picture", "2 pictures instead of 1"),
        (answer(png(16, 32)), "wrong_size", "16x32 instead of 16x16"),
        ((400, b'{"error": "size"}'), "refused", "HTTP 400: "),
        ((404, b"{}"), "refused", "HTTP 404"),
        ((429, b"{}"), "overloaded", "HTTP 429"),
        ((503, b"{}"), "overloaded", "HTTP 503"),
        ((504, b"{}"), "timed_out", "HTTP 504"),
        ((500, b"{}"), "failed", "HTTP 500"),
    ],
)
def test_what_is_no_success(status_and_body: tuple[int, bytes], outcome: str, message: str) -> None:
    found = ask(lambda _: status_and_body, one_job())
    assert found.outcome == outcome
    assert found.message is not None
    assert message in found.message
    assert found.sha256 is None


def test_time_is_limited_by_the_load() -> None:
    def slow(body: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(0.5)
        return paint(body)

    found = ask(slow, one_job(timeout_s=0.1))
    assert (found.outcome, found.message) == ("timed_out", "no answer within timeout_s, 0.1 s")


def test_nobody_there() -> None:
    with images_server() as url:
        pass
    with closing(ServerTarget(url)) as target:
        found = target.ask(one_job())
        assert found.outcome == "failed"
        with pytest.raises(TargetError, match="does not answer"):
            target.describe()


def test_what_servers_tell_of_a_request() -> None:
    metrics = {"first_step_time_s": 0.5, "step_times_s": [0.5, 0.25, 0.75], "num_pages": 6}

    def kit(_: dict[str, Any]) -> tuple[int, bytes]:
        return answer(png(16, 16), metrics=metrics)

    def sglang(_: dict[str, Any]) -> tuple[int, bytes]:
        return answer(png(16, 16), peak_memory_mb=2.0, inference_time_s=1.5)

    assert ask(kit, one_job()).columns == {"first_step_s": 0.5, "pages": 6, "later_step_s": 0.5}
    assert ask(sglang, one_job()).columns == {
        "engine_s": 1.5,
        "memory_peak_bytes": float(2 << 20),
    }
    assert ask(paint, one_job()).columns == {}


def test_a_server_of_another_kind_tells_its_model() -> None:
    with images_server() as url, closing(ServerTarget(f"{url}/v1/")) as target:
        info = target.describe()
        assert (info.label, info.config) == ("server, model painter", {})
        assert target.facts() == {}
        assert target.evidence(one_job(n=3))["pixels"].shape == (16, 16, 3)


@pytest.mark.parametrize("url", ["localhost:8091", "ftp://x", "http://", "http://me:pw@host", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="neither `engine` nor the URL"):
        ServerTarget(url)
