"""Numbers in text are those of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.numerals import read_number


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_what_json_writes_is_read(number: int | float) -> None:
    read = read_number(json.dumps(number))
    assert (type(read), read) == (type(number), number)


@pytest.mark.parametrize("text", ["7", "-0", "2.50", "1e-05", "1E+3"])
def test_numbers(text: str) -> None:
    assert read_number(text) == float(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " 7", "7 ", "7\n", "07", "-07", "+7", "1_0", "0x7", "0o7", "1,5", "7L"),
        *(".5", "5.", "1e", "1e1_0", "--7", "- 7", "nan", "NaN", "inf", "Infinity", "true", "null"),
        *("٧", "７", "²", "7" * 5000),
    ],
)
def test_what_is_no_number(text: str) -> None:
    assert read_number(text) is None
