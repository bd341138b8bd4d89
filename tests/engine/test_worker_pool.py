"""Several worker groups behind one queue, with real processes: order, faults, new starts."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from engine_gate import PATIENCE_S, Gate
from executor_cases import PAGED, wait_until

from kit.api import GenerationRequest, ImageEngine, SamplingParams, StepEvent, load_config
from kit.engine.status import unready_reason
from kit.errors import UnavailableError, WorkerError

STEPS = SamplingParams(num_inference_steps=4, seed=5)
REQUEST = GenerationRequest("a red vase", STEPS)


def make_engine(folder: Path, num_groups: int = 2, **stage: object) -> ImageEngine:
    stage = {"distributed_executor_backend": "mp", "data_parallel_size": num_groups, **stage}
    return ImageEngine(folder, load_config(folder, stage_overrides={"0": {**PAGED, **stage}}))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    # Other tests of this process may hold ranks of their own.
    before = set(psutil.Process().children(recursive=True))
    with make_engine(checkpoint) as running:
        yield running
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture(scope="module")
def expected(engine: ImageEngine) -> npt.NDArray[np.uint8]:
    """The picture of REQUEST, drawn by nobody who was ever lost."""
    config = load_config(engine.model_path, stage_overrides={"0": PAGED})
    with ImageEngine(engine.model_path, config) as inline:
        return inline.generate(REQUEST).image


def pid_of(engine: ImageEngine, group: int) -> int:
    executor = engine._pool.groups[group]._executor
    return executor.pids[0]  # type: ignore[union-attr,no-any-return]


def running_group(engine: ImageEngine, request_id: str) -> int:
    return next(g.index for g in engine.status().groups if request_id in g.running)


def killer(engine: ImageEngine, name: str, steps: list[int]) -> Callable[[StepEvent], None]:
    """Return an `on_step` that kills the group of a request from each of some steps on.

    Every rank once: steps that it told before it died may come after that.
    """
    killed: list[int] = []

    def kill(event: StepEvent) -> None:
        pid = pid_of(engine, running_group(engine, name))
        if steps and event.step >= steps[0] and pid not in killed:
            steps.pop(0)
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    return kill


def settle(engine: ImageEngine) -> None:
    """Wait until every group is ready again; no page may be held then."""
    wait_until(lambda: all(group.state == "ready" for group in engine.status().groups))
    status = engine.status()
    assert (status.pages.used, status.waiting, status.admitted, status.running) == (0, 0, 0, ())


def test_as_many_requests_run_at_once_as_there_are_groups(
    engine: ImageEngine, expected: npt.NDArray[np.uint8]
) -> None:
    gates = [Gate(), Gate()]
    held = [engine.submit(REQUEST, gate) for gate in gates]
    waiting = engine.submit(REQUEST)
    for gate in gates:
        gate.wait()
    status, view = engine.status(), engine.kv_view()
    assert sorted(status.running) == sorted(handle.request_id for handle in held)
    assert (status.waiting, [group.admitted for group in status.groups]) == (1, [0, 0])
    assert {request.group for request in view.requests} == {0, 1}
    pages = [page.page for seen in view.requests for row in seen.rows for page in row]
    assert len(set(pages)) == len(pages) == view.pages.used, "pages are numbered through"
    assert [counts.used for counts in view.groups] == [len(pages) // 2] * 2
    for gate in gates:
        gate.open()
    for handle in (*held, waiting):
        assert (handle.future.result(PATIENCE_S).image == expected).all()
    settle(engine)


def test_a_lost_request_runs_once_more_while_the_other_group_serves_on(
    engine: ImageEngine, expected: npt.NDArray[np.uint8]
) -> None:
    gate = Gate()
    other = engine.submit(REQUEST, gate)
    gate.wait()
    before = sum(group.num_restarts for group in engine.status().groups)
    kill, told = killer(engine, "lost", [2]), list[int]()

    def on_step(event: StepEvent) -> None:
        told.append(event.step)
        kill(event)

    handle = engine.submit(GenerationRequest("a red vase", STEPS, request_id="lost"), on_step)
    waiting = engine.submit(REQUEST)
    assert (handle.future.result(PATIENCE_S).image == expected).all()
    assert told == [1, 2, 3, 4], "each step is told once, whoever made it"
    assert not other.future.done()
    gate.open()
    for kept in (other, waiting):
        assert (kept.future.result(PATIENCE_S).image == expected).all()
    settle(engine)
    assert sum(group.num_restarts for group in engine.status().groups) == before + 1
    assert b"kit_worker_restarts_total" in engine.metrics.exposition()[0]


@pytest.mark.long
def test_the_second_loss_of_a_request_is_final_and_the_next_one_is_served(
    engine: ImageEngine, expected: npt.NDArray[np.uint8]
) -> None:
    handle = engine.submit(
        GenerationRequest("a red vase", STEPS, request_id="twice"), killer(engine, "twice", [1, 2])
    )
    next_one = engine.submit(REQUEST)
    with pytest.raises(
        WorkerError, match=r"request twice: group \d rank 0 .* by signal 9; the second"
    ):
        handle.future.result(PATIENCE_S)
    assert (next_one.future.result(PATIENCE_S).image == expected).all()
    settle(engine)


@pytest.mark.long
def test_a_group_that_is_lost_while_idle_starts_again(checkpoint: Path) -> None:
    with make_engine(checkpoint, num_groups=1) as engine:
        assert unready_reason(engine.status(), 60) is None
        os.kill(pid_of(engine, 0), signal.SIGKILL)
        wait_until(lambda: engine.status().groups[0].state == "restarting")
        reason = unready_reason(engine.status(), 60)
        assert reason is not None
        assert "by signal 9" in reason
        waits = engine.submit(REQUEST)
        assert waits.future.result(PATIENCE_S).image.std() > 0, "it was kept until then"
        assert unready_reason(engine.status(), 60) is None


# Everything a server does but listen, and whether it ever imported torch.
_SERVE = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
from kit.api import ImageEngine, load_config
from kit.server.app import create_app
from kit.server.settings import ServerSettings
folder = Path(sys.argv[1])
stage = {"distributed_executor_backend": "mp", "diffusion_kv_mode": "paged_scheduler",
         "diffusion_kv_max_rows_per_request": 2}
with ImageEngine(folder, load_config(folder, stage_overrides={"0": stage})) as engine:
    client = TestClient(create_app(engine, ServerSettings(name="painter")))
    body = {"prompt": "a cat", "num_inference_steps": 1}
    routes = [client.post("/v1/images/generations", json=body)]
    routes += [client.get(r) for r in ("/ready", "/metrics", "/v1/kv", "/v1/server/info")]
    print([answer.status_code for answer in routes], "torch" in sys.modules)
"""


def test_the_servers_process_never_imports_torch(checkpoint: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, str(checkpoint)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.splitlines()[-1] == "[200, 200, 200, 200, 200] False"


@pytest.mark.long
def test_five_kills_at_random_steps_lose_no_page_and_no_request(
    engine: ImageEngine, expected: npt.NDArray[np.uint8]
) -> None:
    draw = random.Random(11)
    for at in range(5):
        name = f"killed-{at}"
        kill = killer(engine, name, [draw.randint(1, 4)])
        handle = engine.submit(GenerationRequest("a red vase", STEPS, request_id=name), kill)
        assert (handle.future.result(PATIENCE_S).image == expected).all()
        settle(engine)
        assert (engine.generate(REQUEST).image == expected).all()


@pytest.mark.long
def test_a_group_that_cannot_start_again_is_given_up_and_everybody_is_told(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kit.engine")
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    with make_engine(folder, num_groups=1) as engine:
        for shard in folder.glob("*.safetensors"):
            shard.unlink()
        handle = engine.submit(
            GenerationRequest("a red vase", STEPS, request_id="r"), killer(engine, "r", [2])
        )
        started = time.monotonic()
        with pytest.raises(UnavailableError, match="has stopped"):
            handle.future.result(PATIENCE_S)
        assert time.monotonic() - started < PATIENCE_S
        tries = [line for line in caplog.messages if "starts again, try" in line]
        assert tries[-1].endswith("try 4 of 4")
        status = engine.status()
        assert [group.state for group in status.groups] == ["down"]
        assert status.pages.used == 0
        reason = unready_reason(status, 60)
        assert reason is not None
        assert "every worker group is down" in reason
        assert "CheckpointError" in reason
        with pytest.raises(UnavailableError, match="every worker group is down"):
            engine.submit(REQUEST)
