"""Numbers that stand in a text: written as JSON writes them, or they are none."""

from __future__ import annotations

import json
import re

NUMERAL = "a number as JSON writes it, such as 7 or 2.5"

# Python's own int() and float() also take " 7", "07", "+7", "1_0", and digits of other scripts.
WRITTEN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
"""A regular expression of all of them."""


def read_number(text: str) -> int | float | None:
    """Return the number that a text is; None where it is none."""
    if re.fullmatch(WRITTEN, text) is None:
        return None
    try:
        number: int | float = json.loads(text)
    except ValueError:  # Python refuses integers of more than 4300 digits
        return None
    return number
