"""One engine, one build of the CPU images, one report of sizes and times for the whole run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from container_engine import BUILD, Compose, Engine, download_wheels, open_engine

from bench.environment import capture

Report = dict[str, float]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with open_engine() as found:
        yield found


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    """Sizes in bytes and times in seconds, written to build/containers/report.json."""
    numbers: Report = {}
    load = os.getloadavg()
    yield numbers
    if numbers:
        content = {
            "command": "pytest tests/containers",
            "environment": asdict(capture()),
            "load_average_before": load,
            "numbers": numbers,
        }
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / "report.json").write_text(json.dumps(content, indent=2) + "\n")


@pytest.fixture(scope="session")
def wheels(engine: Engine) -> Path:
    del engine  # without one nothing is downloaded
    return download_wheels("torch-cpu", "server", "full", "build")


@pytest.fixture(scope="session")
def compose(engine: Engine, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Compose:
    return Compose(engine, wheels, tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="session")
def images(compose: Compose, report: Report) -> dict[str, str]:
    """The CPU images by target, built by compose from wheels only."""
    start_s = time.monotonic()
    compose("build", "--quiet", "server", "ui")
    # The first time on an engine: from wheels to images; later, what a commit costs.
    report["build_s"] = time.monotonic() - start_s
    return {"server": "hunyuan-paged-kit:test-cpu", "full": "hunyuan-paged-kit:test-cpu-full"}
