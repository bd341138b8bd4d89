"""64 clients at once, each with its own prompt and seed: every picture equals its solo run."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.server_process import PAGED, ServerProcess, image_body, ready_server

NUM_CLIENTS = 64
FIRST_SEED = 1000
PATIENCE_S = 3600
"""How long a client waits: the last one for all others."""

_THINGS = ("vase", "cup", "ball", "box", "lamp", "chair", "bowl", "bottle")
_COLOURS = ("red", "blue", "green", "yellow", "white", "black", "orange", "purple")


@dataclass(frozen=True)
class _Answer:
    sha256: str
    """Of the file: it holds the replay record, so equal files come from equal requests."""

    times: dict[str, float]


def run(context: Context) -> Record:
    """Ask once at the same time and once one after the other; both must give the same files."""
    bodies = [
        image_body(
            f"a {colour} {thing} on a wooden table",
            seed=FIRST_SEED + len(_THINGS) * row + column,
            guidance_scale=1 + (row + column) % 2,
        )
        for row, colour in enumerate(_COLOURS)
        for column, thing in enumerate(_THINGS)
    ]
    assert len(bodies) == NUM_CLIENTS, "a prompt for each client"
    with ready_server(*PAGED) as server:
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            together = list(pool.map(lambda body: _ask(server, body), bodies))
        server.wait_until_idle()
        alone = [_ask(server, body) for body in bodies]
        server.stop()
    num_wrong = sum(a.sha256 != b.sha256 for a, b in zip(alone, together, strict=True))
    num_wrong += NUM_CLIENTS - len({answer.sha256 for answer in together})
    return context.record(
        parameters={"clients": NUM_CLIENTS, "first_seed": FIRST_SEED},
        equality=EqualityCheck.of(
            compared="files that differ from their solo run or that two clients share",
            limit=0,
            seen=num_wrong,
        ),
        baseline=Measurement("one after the other", tuple(answer.times for answer in alone)),
        candidate=Measurement("64 at once", tuple(answer.times for answer in together)),
        ratios={"run_s": ("candidate.run_s", "baseline.run_s")},
    )


def _ask(server: ServerProcess, body: dict[str, Any]) -> _Answer:
    request = urllib.request.Request(
        server.url + "/v1/images/generations",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        answer = json.load(response)
    [image] = answer["data"]
    metrics = image["metrics"]
    times = {
        "run_s": metrics["total_time_s"] - metrics["queue_time_s"],
        "queue_s": metrics["queue_time_s"],
    }
    return _Answer(hashlib.sha256(image["b64_json"].encode()).hexdigest(), times)
