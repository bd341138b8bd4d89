"""Twenty clients that come and go in random ways: the server is as it was, and still serves."""

from __future__ import annotations

from pathlib import Path

from bench.server_cycles import run_cycles
from bench.server_process import ServerProcess


def test_nothing_is_left_of_clients_that_leave_break_off_and_die(tmp_path: Path) -> None:
    flags = ("--deploy-config", "hunyuan_image3_paged.yaml")
    with ServerProcess(tmp_path / "log", *flags) as server:
        server.wait_until_ready()
        kinds = run_cycles(server, num_cycles=20, seed=1)
        assert sum(kinds.values()) == 20
        assert len(kinds) == 8
        server.wait_until_idle()
        assert server.get("/ready")[0] == 200
        assert server.metric('kit_requests_total{outcome="failed"}') == 0
        assert server.metric('kit_requests_total{outcome="cancelled"}') > 0
        assert server.stop() == 0
        assert "Traceback" not in server.log
