"""Where a command writes: lines for the terminal, a file for the result."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kit.errors import flag_error

Say = Callable[[str], None]
"""Takes one line for the terminal: only the command line itself prints."""


def check_writable(flag: str, path: Path) -> None:
    """Refuse an output that could not be written before the work is done."""
    try:
        what = _problem(path)
    except OSError as error:  # of a name that no file can have
        what = f"cannot be written: {error.strerror}"
    if what:
        raise flag_error(flag, what, str(path), "name a file that you may write")


def _problem(path: Path) -> str:
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"has no folder {path.parent}"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "cannot be written: Permission denied"
    return ""
