"""The workloads about worker groups, small, with real processes."""

from __future__ import annotations

import pytest

from bench.environment import capture
from bench.registry import Context
from bench.workloads import worker_kills


@pytest.mark.long
def test_killed_ranks_leave_nothing() -> None:
    context = Context("worker_kills", ("python",), capture(), repeats=1)
    record = worker_kills.measure(context, num_kills=3)
    assert record.status == "ok"
    assert record.equality is not None
    assert record.equality.seen == 0
    assert record.findings["restarts"] >= 3, "every kill hit a group"
