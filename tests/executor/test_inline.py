"""The worker group of the engine's own process."""

from __future__ import annotations

import subprocess
import sys

# Prints how many threads loading and then computing left behind: OpenMP's are none of Python's.
_LOAD = """
import os, threading, time
import torch
from kit.api import ImageEngine, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

def num_foreign():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

torch.set_num_threads(2)
engine = ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT))
before = num_foreign()
with engine:
    deadline = time.monotonic() + 20
    while num_foreign() > before and time.monotonic() < deadline:
        time.sleep(0.02)  # threads that end are seen for a moment more
    loaded = num_foreign()
    torch.ones(1 << 22).exp()
    print(loaded - before, num_foreign() - before)
"""


def test_loading_leaves_no_threads_that_slow_the_steps_down() -> None:
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True)
    after_loading, after_computing = done.stdout.split()
    assert after_computing == "1", "this count sees the threads of OpenMP"
    assert after_loading == "0"
