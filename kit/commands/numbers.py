"""Numbers of a command line, as types of argparse."""

from __future__ import annotations

import argparse

from kit.numerals import NUMERAL, read_number


def integer(text: str) -> int:
    """Return an integer; raises ArgumentTypeError."""
    read = read_number(text)
    if not isinstance(read, int):
        raise argparse.ArgumentTypeError(
            f"got {text!r:.100}, expected an integer as JSON writes it, such as 7"
        )
    return read


def number(text: str) -> float:
    """Return a number; raises ArgumentTypeError."""
    if read_number(text) is None:
        raise argparse.ArgumentTypeError(f"got {text!r:.100}, expected {NUMERAL}")
    return float(text)
