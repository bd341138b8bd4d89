"""docs/parallelism.md against the code and the records that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from kit.config.deploy import ExecutorBackend, StageConfig
from kit.engine.group import MAX_STRIKES
from kit.parallel.validated import VALIDATED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "parallelism.md").read_text()


def test_the_table_of_topologies_is_the_codes() -> None:
    rows = re.findall(r"^\| (cpu|cuda|npu) \| (\S+) \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert rows == [(one.platform, str(one.topology), one.record) for one in VALIDATED]


def test_every_executor_is_explained_and_no_other() -> None:
    table = PAGE.split("## Where ranks run")[1].split("## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == (
        "distributed_executor_backend",
        *get_args(ExecutorBackend),
    )


def test_limits_of_the_page_are_the_codes() -> None:
    assert f"`execute_model_timeout_s` ({StageConfig().execute_model_timeout_s:g} s)" in PAGE
    assert MAX_STRIKES == 5
    assert "five times without a step" in PAGE
