"""Runs what a record's command ran once more, here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import PurePath

from bench.records import Record
from kit.errors import ConfigError

_PROGRAM = ("python", "-m", "bench")
RUNS_AGAIN = ("run", "compare")


def options_of(
    record: Record, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> argparse.Namespace:
    """Return the options that a record's command line meant.

    Raises ConfigError when it is not the command of a run.
    """
    arguments = record.command[len(_PROGRAM) :]
    if record.command[: len(_PROGRAM)] != _PROGRAM or not arguments:
        raise _refusal(record)
    try:
        options = parse(arguments)
    except SystemExit as stop:
        raise _refusal(record) from stop
    if options.command not in RUNS_AGAIN:
        raise _refusal(record)
    return options


def recorded_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line as a record holds it: absolute paths become names of files.

    A record is passed on, and a path of one machine says nothing on another.
    """
    return (*_PROGRAM, *(_without_folder(argument) for argument in arguments))


def _without_folder(argument: str) -> str:
    flag, equals, value = (
        argument.partition("=") if argument.startswith("--") else ("", "", argument)
    )
    return flag + equals + PurePath(value).name if PurePath(value).is_absolute() else argument


def _refusal(record: Record) -> ConfigError:
    return ConfigError(
        "command",
        "is none that can be run again",
        value=" ".join(record.command),
        source="the record",
        remedy=f"verify a record of `python -m bench {' | '.join(RUNS_AGAIN)}`",
    )
