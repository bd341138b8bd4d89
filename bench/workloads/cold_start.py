"""What `kit generate` takes from process start to the finished file, against its limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.pixels import decode, largest_difference
from bench.records import EqualityCheck, Measurement, Record, RecordError, median_of
from bench.registry import Context
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

PROMPT = "A red ceramic vase on a wooden table"
NUM_STEPS = 20
SEED = 1234
NUM_THREADS = 2

MAX_TOTAL_S = 4.0
"""For 256x256 with guidance on two cores of an otherwise idle machine."""

_LOADED = re.compile(r"\[kit\.engine\] model .* loaded in ([\d.]+) s")
_WROTE = re.compile(r"wrote .* ([\d.]+) s denoising \(first step ([\d.]+) s\), ([\d.]+) s decoding")


def run(context: Context) -> Record:
    """Run the command once to warm the disk's cache, then `context.repeats` times."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vase.png")
        rows = [_measure(path) for _ in range(1 + context.repeats)][1:]
        difference = _difference(path)
    return context.record(
        parameters={
            "prompt": PROMPT,
            "size": "256x256",
            "num_inference_steps": NUM_STEPS,
            "seed": SEED,
            "num_threads": NUM_THREADS,
            "warmup_runs": 1,
            "limit_total_s": MAX_TOTAL_S,
        },
        equality=EqualityCheck.of(
            compared="the command's picture against the engine's own, largest difference in levels",
            limit=1,
            seen=difference,
        ),
        baseline=Measurement("the limit", ({"total_s": MAX_TOTAL_S},)),
        candidate=Measurement("kit generate, its process started and ended", tuple(rows)),
        ratios={"total_over_limit": ("candidate.total_s", "baseline.total_s")},
    )


def as_table(record: Record) -> str:
    """Return the medians of a record, part by part, as a Markdown table."""
    parts = {
        "total_s": "process start to its end",
        "imports_s": "Python, imports, checks",
        "load_s": "loading the weights",
        "first_step_s": "first step, the prefix included",
        "later_steps_s": f"the other {NUM_STEPS - 1} steps",
        "decode_s": "decoding",
        "finish_s": "encoding, writing, end of the process",
    }
    lines = ["| part | seconds, median |", "| --- | --- |"]
    for column, name in parts.items():
        lines.append(f"| {name} | {median_of(record, f'candidate.{column}'):.2f} |")
    return "\n".join(lines) + "\n"


def _measure(path: Path) -> dict[str, float]:
    """Run the command and tell its parts apart by what it says, and when.

    imports_s: until loading begins; finish_s: encoding, writing and the end of the process.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(NUM_THREADS), "PYTHONUNBUFFERED": "1"}
    command = ["generate", PROMPT, "-o", str(path), "--size", "256x256"]
    command += ["--steps", str(NUM_STEPS), "--seed", str(SEED)]
    load_before = os.getloadavg()[0]
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "kit.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None, "it was asked for"
        said: list[str] = []
        loaded_s = 0.0
        for line in process.stdout:
            said.append(line)
            if _LOADED.search(line):
                loaded_s = time.perf_counter() - started
    total_s = time.perf_counter() - started
    loaded = next(filter(None, map(_LOADED.search, said)), None)
    wrote = next(filter(None, map(_WROTE.search, said)), None)
    if process.returncode or loaded is None or wrote is None:
        raise RecordError(f"kit generate ended with {process.returncode}:\n{''.join(said)}")
    load_s = float(loaded[1])
    denoising_s, first_step_s, decode_s = map(float, wrote.groups())
    return {
        "total_s": total_s,
        "imports_s": loaded_s - load_s,
        "load_s": load_s,
        "first_step_s": first_step_s,
        "later_steps_s": denoising_s - first_step_s,
        "decode_s": decode_s,
        "finish_s": total_s - loaded_s - denoising_s - decode_s,
        "load_average": load_before,
    }


def _difference(path: Path) -> int:
    """Draw the picture in this process and return the largest difference of a channel."""
    torch.set_num_threads(NUM_THREADS)
    sampling = SamplingParams(height=256, width=256, num_inference_steps=NUM_STEPS, seed=SEED)
    with ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT)) as engine:
        own = engine.generate(GenerationRequest(PROMPT, sampling)).image
    return largest_difference(decode(path.read_bytes()), own)
