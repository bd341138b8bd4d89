"""The engine and a real server as targets: they tell the same of the same pictures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import uvicorn
from bench_loads import opened, small_load
from record_samples import ENVIRONMENT

from bench.harness.compare import compare
from bench.harness.engine_target import EngineTarget
from bench.harness.jobs import Job, job
from bench.harness.measure import measure
from bench.harness.server_target import ServerTarget
from bench.harness.target import Evidence, pixels_sha256
from bench.registry import Context
from kit.api import ImageEngine, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.server.app import create_app
from kit.server.settings import ServerSettings

LOAD = small_load(sizes=("384x128",), steps=(2,), guidance=(1.0,), requests=1, warmup=0)
JOB = job(LOAD, 0)
CONTEXT = Context("small", ("python", "-m", "bench"), ENVIRONMENT, 1)


def engine(deploy: str) -> ImageEngine:
    return ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT, deploy))


@pytest.fixture(scope="module")
def paged() -> Iterator[EngineTarget]:
    with engine("hunyuan_image3_paged.yaml") as one:
        yield EngineTarget(one)


@pytest.fixture(scope="module")
def server(paged: EngineTarget) -> Iterator[ServerTarget]:
    """The same engine behind a real socket."""
    app = create_app(paged.engine, ServerSettings("painter"))
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    with closing(ServerTarget(f"http://127.0.0.1:{port}")) as target:
        yield target
    running.should_exit = True
    thread.join()


def test_engine_and_server_tell_the_same(paged: EngineTarget, server: ServerTarget) -> None:
    own, served = paged.ask(JOB), server.ask(JOB)
    assert (own.outcome, served.outcome) == ("ok", "ok")
    assert own.sha256 == served.sha256
    assert set(own.columns) | {"encode_s"} == set(served.columns)
    assert own.columns["pages"] == served.columns["pages"] > 0
    assert own.columns["engine_s"] > own.columns["first_step_s"] > 0
    info = server.describe()
    assert info.label == "server, paged_scheduler, FLASH_ATTN"
    assert info.config.keys() == paged.describe().config.keys()
    shared = ("pool_pages", "page_bytes", "pages_used_peak")
    assert {n: paged.facts()[n] for n in shared} == {n: server.facts()[n] for n in shared}


def test_several_pictures_of_one_request(paged: EngineTarget, server: ServerTarget) -> None:
    two = replace(JOB, n=2, steps=1)
    own = paged.ask(two)
    assert own.outcome == "ok"
    assert own.sha256 == server.ask(two).sha256
    second = replace(two, n=1, seed=JOB.seed + 1)
    pixels = [paged.evidence(one)["pixels"].astype(np.uint8) for one in (two, second)]
    assert own.sha256 == pixels_sha256(pixels)


def test_failures_by_what_they_are(paged: EngineTarget, server: ServerTarget) -> None:
    wrong, late = replace(JOB, width=250), replace(JOB, steps=1000, timeout_s=0.2)
    for target in (paged, server):
        assert target.ask(wrong).outcome == "refused"
        found = target.ask(late)
        assert found.outcome == "timed_out", found
    assert paged.ask(JOB).outcome == "ok"


class Tilted(EngineTarget):
    """Flips the lowest bit of one number of one step's latents."""

    def evidence(self, job: Job) -> Evidence:
        found = dict(super().evidence(job))
        latents = found["latents of step 2"].copy()
        latents.reshape(-1).view(np.uint32)[5] ^= np.uint32(1)
        return {**found, "latents of step 2": latents}


def test_modes_are_equal_and_one_bit_is_not(paged: EngineTarget) -> None:
    with engine("hunyuan_image3_dit.yaml") as other:
        dense = EngineTarget(other)
        record = compare(CONTEXT, LOAD, opened(dense), opened(paged))
        assert record.status == "ok"
        assert set(record.summary) == {"latency", "first_step", "later_step", "decode"}
        assert record.findings["candidate requests that the pool holds"] > 1
        assert "baseline pages of the pool" not in record.findings
        assert record.config["candidate.stage.diffusion_kv_mode"].value == "paged_scheduler"
        tilted = compare(CONTEXT, LOAD, opened(dense), opened(Tilted(paged.engine)))
    assert tilted.status == "failed"
    assert tilted.equality is not None
    assert (tilted.equality.equal, tilted.equality.seen) == (False, 1)


def test_a_load_on_the_engine(paged: EngineTarget) -> None:
    record = measure(CONTEXT, replace(LOAD, requests=6, warmup=1), paged)
    assert record.status == "ok"
    assert {"latency_s p50", "later_step_s p50", "decode_s p50"} <= record.figures.keys()
    assert record.findings["pages_used at rest, after"] == 0
    assert record.findings["memory_held_bytes at rest, before"] > 1e8
    assert record.candidate is not None
    assert len({row["sha256"] for row in record.candidate.rows}) == 6
