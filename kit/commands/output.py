"""Where a command writes: lines for the terminal, a file for the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kit.errors import ConfigError

Say = Callable[[str], None]
"""Takes one line for the terminal: only the command line itself prints."""


def check_writable(flag: str, path: Path) -> None:
    """Refuse an output that could not be written before the work is done."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"has no folder {path.parent}"
        raise ConfigError(
            flag, what, value=str(path), source="the command line", remedy="name a file"
        )
