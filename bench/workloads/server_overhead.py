"""What the HTTP server adds to the engine's own time for a small picture, PNG encoding apart."""

from __future__ import annotations

import base64
import json
import os
import time
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import torch

from bench.pixels import decode, largest_difference
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.server_process import PATIENCE_S, ServerProcessError, image_body, ready_server
from kit.api import GenerationRequest, GenerationResult, ImageEngine, SamplingParams, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

PROMPT = "A red ceramic vase on a wooden table"
NUM_STEPS = 2
SEED = 1234
MIN_REQUESTS = 30
WARMUP = 3
DEPLOYMENT = "hunyuan_image3_paged.yaml"

MAX_ADDED_S = 0.005
"""The median that the server may add at 256x256 on an otherwise idle machine."""

_BODY = image_body(PROMPT, num_inference_steps=NUM_STEPS, seed=SEED)


def run(context: Context) -> Record:
    """Ask a server and an engine without one for the same picture in turn, at least 30 times each.

    `added_s` compares two clocks over one request: the client's, and the engine's inside the
    server. The engine alone, in this process with as many threads, shows whether it is slower
    inside the server: then the server would cost what `added_s` cannot see.
    """
    num_requests = max(context.repeats, MIN_REQUESTS)
    num_threads = torch.get_num_threads()
    alone: list[GenerationResult] = []
    seen: list[tuple[dict[str, float], dict[str, Any]]] = []
    with (
        ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT, DEPLOYMENT)) as engine,
        ready_server(
            "--deploy-config", DEPLOYMENT, env={"OMP_NUM_THREADS": str(num_threads)}
        ) as server,
    ):
        parts = urlsplit(server.url)
        with closing(HTTPConnection(parts.netloc, timeout=PATIENCE_S)) as connection:
            for _ in range(WARMUP + num_requests):
                alone.append(engine.generate(_request()))
                seen.append(_ask(connection))
        server.stop()
    served = decode(base64.b64decode(seen[-1][1]["data"][0]["b64_json"]))
    difference = largest_difference(served, alone[-1].image)
    own_times = [result.metrics.total_time_s for result in alone[WARMUP:]]
    return context.record(
        parameters={
            "prompt": PROMPT,
            "size": _BODY["size"],
            "num_inference_steps": NUM_STEPS,
            "seed": SEED,
            "deployment": DEPLOYMENT,
            "warmup_requests": WARMUP,
            "connection": "opened and used once before the clock starts",
            "threads_each": num_threads,
            "order": "baseline, candidate, alternating",
            "load_average_1min_at_end": os.getloadavg()[0],
            "limit_added_s": MAX_ADDED_S,
        },
        equality=EqualityCheck.of(
            compared="picture over HTTP against the engine's own, largest difference in levels",
            limit=0,
            seen=difference,
        ),
        baseline=Measurement(
            "an engine without a server, from submission to the decoded picture, and the limit",
            tuple({"engine_s": own_s, "limit_added_s": MAX_ADDED_S} for own_s in own_times),
        ),
        candidate=Measurement(
            "HTTP from the first byte sent to the last one read, PNG encoding taken off",
            tuple(row for row, _ in seen[WARMUP:]),
        ),
        ratios={
            "http_over_engine": ("candidate.http_less_encode_s", "baseline.engine_s"),
            "engine_in_server": ("candidate.engine_s", "baseline.engine_s"),
            "added_over_limit": ("candidate.added_s", "baseline.limit_added_s"),
        },
    )


def _request() -> GenerationRequest:
    sampling = SamplingParams(height=256, width=256, num_inference_steps=NUM_STEPS, seed=SEED)
    return GenerationRequest(PROMPT, sampling)


def _ask(connection: HTTPConnection) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the times of one request on a connection just opened and used, and its answer."""
    connection.close()  # the server may have done so while the engine without it was drawing
    connection.request("GET", "/health")
    connection.getresponse().read()
    data = json.dumps(_BODY).encode()
    started = time.perf_counter()
    connection.request("POST", "/v1/images/generations", data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    http_s = time.perf_counter() - started
    if response.status != 200:
        raise ServerProcessError(f"the server answered {response.status}: {text[:300]!r}")
    answer = json.loads(text)
    metrics = answer["metrics"]
    engine_s, encode_s = metrics["total_time_s"], metrics["encode_time_s"]
    row = {
        "http_s": http_s,
        "engine_s": engine_s,
        "encode_s": encode_s,
        "http_less_encode_s": http_s - encode_s,
        "added_s": http_s - encode_s - engine_s,
    }
    return row, answer
