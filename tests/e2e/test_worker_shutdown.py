"""A real server with ranks in processes of their own, and its end: nothing of it is left."""

from __future__ import annotations

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from executor_cases import has_ended, wait_until

from bench.server_process import PATIENCE_S, ServerProcess, image_body

IMAGES = "/v1/images/generations"
GROUPS = json.dumps({"0": {"data_parallel_size": 2, "max_num_seqs": 2}})
FLAGS = ("--deploy-config", "hunyuan_image3_paged.yaml", "--stage-overrides", GROUPS)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_and_no_port_is_left(number: signal.Signals, tmp_path: Path) -> None:
    # Tests before this one may have left multiprocessing's tracker.
    before = set(psutil.Process().children())
    with ServerProcess(tmp_path / "log", *FLAGS) as server, ThreadPoolExecutor() as pool:
        server.wait_until_ready()
        ranks = [child.pid for child in psutil.Process(server.process.pid).children()]
        assert len(ranks) == 2
        running = [
            pool.submit(server.post, IMAGES, image_body(num_inference_steps=10)) for _ in range(2)
        ]
        server.wait_for(lambda: len([r for r in server.kv()["requests"] if r["step"]]) == 2)
        assert {request["group"] for request in server.kv()["requests"]} == {0, 1}
        address = urlsplit(server.url)
        code = server.stop(number)
        wait_until(lambda: all(map(has_ended, ranks)))
        assert set(psutil.Process().children()) <= before
        if number == signal.SIGKILL:
            assert all(isinstance(one.exception(PATIENCE_S), OSError) for one in running)
        else:
            assert code == 0
            assert [one.result(PATIENCE_S)[0] for one in running] == [200, 200], "they may end"
            assert "Traceback" not in server.log
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((address.hostname, address.port))


@pytest.mark.long
def test_a_killed_rank_is_seen_by_ready_and_requests_are_answered(tmp_path: Path) -> None:
    one = json.dumps({"0": {"distributed_executor_backend": "mp"}})
    flags = ("--deploy-config", "hunyuan_image3_paged.yaml", "--stage-overrides", one)
    with ServerProcess(tmp_path / "log", *flags) as server:
        server.wait_until_ready()
        [rank] = psutil.Process(server.process.pid).children()
        rank.kill()
        server.wait_for(lambda: server.get("/ready")[0] == 503)
        assert "by signal 9" in json.loads(server.get("/ready")[1])["reason"]
        assert server.get("/health")[0] == 200
        assert server.post(IMAGES, image_body())[0] == 200, "it waited for the new start"
        assert server.metric("kit_worker_restarts_total") == 1
        assert server.stop() == 0
