"""What the message of a ConfigError says."""

from __future__ import annotations

from typing import Any

import pytest

from kit.errors import ConfigError, flag_error


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "x: is wrong"),
        ({"value": 0}, "x: is wrong (got 0)"),
        ({"value": "", "source": "default"}, "x: is wrong (got '', set by default)"),
        ({"source": "a.yaml"}, "x: is wrong (got None, set by a.yaml)"),
        ({"remedy": "leave it out"}, "x: is wrong; leave it out"),
    ],
)
def test_a_message_says_what_was_got_if_something_was(given: dict[str, Any], said: str) -> None:
    assert str(ConfigError("x", "is wrong", **given)) == said


def test_a_flag_is_set_by_the_command_line() -> None:
    error = flag_error("--n", "is no number", "x", "give 1")
    assert str(error) == "--n: is no number (got 'x', set by the command line); give 1"
