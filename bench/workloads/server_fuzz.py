"""A server before and after thousands of requests with wrong fields: no 5xx, nothing is left."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.server_fuzz import IMAGES, Answer, FuzzRequest, fuzz_requests, problem_of, send_and_tidy
from bench.server_process import PAGED, PATIENCE_S, ServerProcess, image_body, ready_server

NUM_REQUESTS = 2400
SEED = 7
WARMUP = 2
NUM_SHOWN = 5
"""How many problems the record tells in full."""


def run(context: Context) -> Record:
    """Ask for one picture `context.repeats` times on a fresh server and after the fuzz."""
    statuses: Counter[str] = Counter()
    problems: list[str] = []
    with ready_server(*PAGED) as server:
        pictures = [_measure(server)[1] for _ in range(WARMUP)]
        before = [_measure(server) for _ in range(context.repeats)]
        with closing(HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE_S)) as connection:
            for request in fuzz_requests(NUM_REQUESTS, SEED):
                answer = send_and_tidy(request, lambda asked: _send(connection, asked))
                statuses[str(answer.status)] += 1
                if problem := problem_of(request, answer):
                    problems.append(problem)
        server.wait_until_idle()
        left = sum(server.load().values())
        after = [_measure(server) for _ in range(context.repeats)]
        exit_code = server.stop()
    pictures += [picture for _, picture in (*before, *after)]
    changed = len(set(pictures)) - 1
    seen = len(problems) + left + changed + abs(exit_code)
    return context.record(
        parameters={
            "requests": NUM_REQUESTS,
            "seed": SEED,
            "answers_by_status": dict(sorted(statuses.items())),
            "problems": [*problems[:NUM_SHOWN]],
            "warmup_images": WARMUP,
        },
        equality=EqualityCheck.of(
            compared="answers of 5xx or in a wrong shape, requests and pages that stayed, pictures "
            "that changed, exit code: summed",
            limit=0,
            seen=seen,
        ),
        baseline=Measurement("before the fuzz", tuple({"total_s": s} for s, _ in before)),
        candidate=Measurement("after the fuzz", tuple({"total_s": s} for s, _ in after)),
        ratios={"total_s": ("candidate.total_s", "baseline.total_s")},
    )


def _measure(server: ServerProcess) -> tuple[float, str]:
    """Return the seconds of one request, and the hash of its picture."""
    started = time.perf_counter()
    answer = json.loads(server.post(IMAGES, image_body())[1])
    elapsed = time.perf_counter() - started
    return elapsed, hashlib.sha256(answer["data"][0]["b64_json"].encode()).hexdigest()


def _send(connection: HTTPConnection, request: FuzzRequest) -> Answer:
    headers = {"Content-Type": request.content_type} if request.content_type else {}
    connection.request(request.method, request.path, request.content, headers)
    response = connection.getresponse()
    content = response.read()
    named = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, named, content)
