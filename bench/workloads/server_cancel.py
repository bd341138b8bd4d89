"""A server before and after 500 clients that leave, break off and die: nothing is left of them."""

from __future__ import annotations

import json

from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.server_cycles import IMAGES, NUM_CLIENTS, run_cycles
from bench.server_process import PAGED, ServerProcess, image_body, ready_server

NUM_CYCLES = 500
SEED = 4
WARMUP = 2


def run(context: Context) -> Record:
    """Measure one request `context.repeats` times on a fresh server and after the cycles."""
    with ready_server(*PAGED) as server:
        for _ in range(WARMUP):
            _measure(server)
        before = [_measure(server) for _ in range(context.repeats)]
        kinds = run_cycles(server, NUM_CYCLES, SEED)
        server.wait_until_idle()
        left = server.load()
        after = [_measure(server) for _ in range(context.repeats)]
        exit_code = server.stop()
    left["exit code"] = abs(exit_code)
    return context.record(
        parameters={
            "cycles": NUM_CYCLES,
            "clients_at_once": NUM_CLIENTS,
            "kinds": {**kinds},
            "seed": SEED,
            "warmup_images": WARMUP,
        },
        equality=EqualityCheck.of(
            compared=f"{', '.join(left)} after the cycles, summed",
            limit=0,
            seen=sum(left.values()),
        ),
        baseline=Measurement("before the cycles", tuple(before)),
        candidate=Measurement("after the cycles", tuple(after)),
        ratios={
            name: (f"candidate.{name}", f"baseline.{name}")
            for name in ("total_s", "peak_memory_bytes")
        },
    )


def _measure(server: ServerProcess) -> dict[str, float]:
    metrics = json.loads(server.post(IMAGES, image_body())[1])["metrics"]
    return {
        "total_s": metrics["total_time_s"],
        "peak_memory_bytes": metrics["peak_memory_bytes"],
    }
