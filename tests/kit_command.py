"""`kit` as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def run_kit(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, on one thread; whoever calls looks at its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "kit.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
        check=False,
    )
