"""The program that takes the page's screenshots still finds what it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "tools" / "demo_screenshots.py"


def test_without_a_folder_it_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "usage: demo_screenshots.py FOLDER" in done.stderr
