"""What the harness adds to a request of 256x256, in process and over HTTP, against 1 % of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import torch

from bench.harness.drive import drive, warm_up
from bench.harness.engine_target import EngineTarget
from bench.harness.load import LOADS, Load, read_load
from bench.harness.server_target import ServerTarget
from bench.harness.target import Target, pixels_sha256
from bench.records import EqualityCheck, Measurement, Record, Row
from bench.registry import Context
from bench.server_process import ready_server
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

DEPLOYMENT = "hunyuan_image3_paged.yaml"
NUM_STEPS = 2
"""Few: the more there are, the less the harness weighs."""

MIN_REQUESTS = 30
MAX_SHARE = 0.01


def run(context: Context) -> Record:
    """Run a closed load of one client on an engine and on a server, at least 30 requests each.

    From the end of one request to the end of the next everything counts. What is not the request
    is the harness: in process what the engine's own clock does not count, over HTTP what is neither
    between the first byte sent and the last one read.
    """
    load = replace(
        read_load(LOADS / "vase.yaml"),
        steps=(NUM_STEPS,),
        requests=max(context.repeats, MIN_REQUESTS) + 1,
    )
    config = load_config(DEFAULT_CHECKPOINT, DEPLOYMENT)
    with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
        in_process = _run(load, EngineTarget(engine))
        sampling = SamplingParams(256, 256, NUM_STEPS, load.guidance[0], load.first_seed)
        own = engine.generate(GenerationRequest(load.prompts[0], sampling))
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    with ready_server("--deploy-config", DEPLOYMENT, env=threads) as server:
        with closing(ServerTarget(server.url)) as target:
            over_http = _run(load, target)
        server.stop()
    expected = pixels_sha256([own.image])
    num_wrong = sum(rows[0]["sha256"] != expected for rows in (in_process, over_http))
    requests = (_parts(in_process, "engine_s"), _parts(over_http, "service_s"))
    return context.record(
        parameters={
            "load": load.as_json(),
            "deployment": DEPLOYMENT,
            "limit_share": MAX_SHARE,
            "load_average_1min_at_end": os.getloadavg()[0],
        },
        equality=EqualityCheck.of(
            compared="pictures of the first request that differ from the engine's own",
            limit=0,
            seen=num_wrong,
        ),
        baseline=Measurement(
            "the request itself, and 1 % of it",
            tuple(
                {
                    "engine_s": engine_s,
                    "engine_limit_s": MAX_SHARE * engine_s,
                    "http_s": http_s,
                    "http_limit_s": MAX_SHARE * http_s,
                }
                for (engine_s, _), (http_s, _) in zip(*requests, strict=True)
            ),
        ),
        candidate=Measurement(
            "what the harness adds",
            tuple(
                {"in_process_s": in_process_s, "over_http_s": over_http_s}
                for (_, in_process_s), (_, over_http_s) in zip(*requests, strict=True)
            ),
        ),
        ratios={
            "in_process_over_limit": ("candidate.in_process_s", "baseline.engine_limit_s"),
            "over_http_over_limit": ("candidate.over_http_s", "baseline.http_limit_s"),
        },
    )


def _run(load: Load, target: Target) -> tuple[Row, ...]:
    warm_up(target, load)
    return drive(target, load)


def _parts(rows: Sequence[Row], column: str) -> list[tuple[float, float]]:
    """Return (the request's own time, what came on top of it) of all requests but the first."""
    found = []
    for before, row in pairwise(rows):
        turn_s = float(str(row["done_s"])) - float(str(before["done_s"]))
        own_s = float(str(row[column]))
        found.append((own_s, turn_s - own_s))
    return found
