"""A complete record, made of invented numbers."""

from __future__ import annotations

from typing import Any

from bench.environment import Environment, GitState
from bench.records import ConfigValue, EqualityCheck, Measurement, Record, summarise
from kit.telemetry.accelerators import Accelerator
from kit.telemetry.environment import SystemEnvironment, TorchBuild

ENVIRONMENT = Environment(
    SystemEnvironment(
        timestamp="2030-01-02T03:04:05Z",
        python="CPython 3.11.0",
        os="Linux 6",
        machine="x86_64",
        cpu="some",
        num_cpus=2,
        num_usable_cpus=2,
        memory_bytes=1 << 34,
        thread_variables={"OMP_NUM_THREADS": "1"},
        torch=TorchBuild("2.13.0", None, None, "AVX2", 1),
        accelerators=(Accelerator("NVIDIA H200", "580", 143771.0, None, None),),
        packages={"numpy": "2.0"},
    ),
    GitState("0" * 40, dirty=False),
)
BASELINE = Measurement("dense", ({"step_s": 2.0}, {"step_s": 4.0}, {"step_s": 3.0}))
CANDIDATE = Measurement(
    "paged", ({"step_s": 1.0, "note": "a"}, {"step_s": 8.0, "hit": True}, {"step_s": 6.0})
)
EQUAL = EqualityCheck("latents, largest difference", limit=0.0, seen=0.0, equal=True)
RATIOS = {"step": ("candidate.step_s", "baseline.step_s")}
SIDES = ("candidate", "baseline")


def record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": "paged_vs_dense",
        "status": "ok",
        "environment": ENVIRONMENT,
        "command": ("python", "-m", "bench", "run", "paged_vs_dense"),
        "config": {"max_num_seqs": ConfigValue(1, "default")},
        "parameters": {"steps": 4, "sizes": ["256x256"], "warm_up": None},
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "equality": EQUAL,
        "summary": summarise(BASELINE, CANDIDATE, RATIOS),
    }
    return Record(**{**values, **changes})
