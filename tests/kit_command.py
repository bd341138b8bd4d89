"""`kit` as a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_kit(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; whoever calls looks at its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "kit.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
