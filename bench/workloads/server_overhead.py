"""What the HTTP server adds to the engine's own time for a small picture, PNG encoding apart."""

from __future__ import annotations

import base64
import io
import json
import tempfile
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from PIL import Image

from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.server_process import PATIENCE_S, ServerProcess, ServerProcessError, image_body
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
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
    """Ask for the same picture at least 30 times over one connection, one after the other."""
    num_requests = max(context.repeats, MIN_REQUESTS)
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder, "log"), "--deploy-config", DEPLOYMENT) as server,
    ):
        server.wait_until_ready()
        parts = urlsplit(server.url)
        with closing(HTTPConnection(parts.netloc, timeout=PATIENCE_S)) as connection:
            seen = [_ask(connection) for _ in range(WARMUP + num_requests)][WARMUP:]
        server.stop()
    difference = _difference(seen[-1][1])
    return context.record(
        parameters={
            "prompt": PROMPT,
            "size": _BODY["size"],
            "num_inference_steps": NUM_STEPS,
            "seed": SEED,
            "deployment": DEPLOYMENT,
            "warmup_requests": WARMUP,
            "connections": 1,
            "limit_added_s": MAX_ADDED_S,
        },
        equality=EqualityCheck(
            compared="picture over HTTP against the engine's own, largest difference in levels",
            limit=1,
            seen=difference,
            equal=difference <= 1,
        ),
        baseline=Measurement(
            "the engine's own time, from submission to the decoded picture, and the limit",
            tuple({"engine_s": row["engine_s"], "limit_added_s": MAX_ADDED_S} for row, _ in seen),
        ),
        candidate=Measurement(
            "HTTP from the first byte sent to the last one read, PNG encoding taken off",
            tuple(row for row, _ in seen),
        ),
        ratios={
            "http_over_engine": ("candidate.http_less_encode_s", "baseline.engine_s"),
            "added_over_limit": ("candidate.added_s", "baseline.limit_added_s"),
        },
    )


def _ask(connection: HTTPConnection) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the times of one request, and its answer."""
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


def _difference(answer: dict[str, Any]) -> float:
    """Draw the picture without a server and return the largest difference of a channel."""
    config = load_config(DEFAULT_CHECKPOINT, DEPLOYMENT)
    sampling = SamplingParams(height=256, width=256, num_inference_steps=NUM_STEPS, seed=SEED)
    with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
        own: npt.NDArray[np.uint8] = engine.generate(GenerationRequest(PROMPT, sampling)).image
    data = base64.b64decode(answer["data"][0]["b64_json"])
    served = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.int16)
    return float(np.abs(served - own.astype(np.int16)).max())
