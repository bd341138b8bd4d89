"""The workload of loading, on a narrow checkpoint and two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_cases import PACKAGE

from bench.environment import capture
from bench.registry import Context
from bench.workloads import loading


@pytest.mark.long
def test_loading_on_two_processes(tmp_path: Path) -> None:
    raw = json.loads((PACKAGE / "checkpoint" / "golden" / "config.json").read_text())
    setting = loading.Setting("cpu", raw, 2, tmp_path)
    record = loading.measure_setting(Context("loading", ("python",), capture(), 1), setting)
    assert record.status == "ok", record.error
    assert set(record.summary) == {"alone_cold", "alone_warm", "shared_cold", "shared_warm"}
    ranks: Any = record.parameters["bytes_of_a_rank"]
    file_bytes: Any = record.findings["file_bytes"]
    first, second = ranks
    assert first == second < file_bytes
    assert not list(tmp_path.iterdir()), "40 GB may not stay behind"
