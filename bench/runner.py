"""Runs work to its records, whatever happens."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import torch

from bench.records import Failure, Record
from bench.registry import Context, Workload
from kit.errors import KitError

# What the operator must change (configuration, checkpoint, request) carries this exit code.
_REFUSED = 2
_SEED = 0


def run(context: Context, work: Callable[[Context], Record]) -> Record:
    """Return the record that the work makes, or one that holds the error that ended it."""
    try:
        return work(context)
    except Exception as error:
        return _without_result(context, error)


def run_all(context: Context, work: Workload) -> Iterator[Record]:
    """Yield the records that a workload makes, each as soon as it is there; the last may be that of
    the error that ended it. Random weights and inputs are the same in every run.
    """
    torch.manual_seed(_SEED)
    try:
        made = work(context)
        yield from (made,) if isinstance(made, Record) else made
    except Exception as error:
        yield _without_result(context, error)


def _without_result(context: Context, error: Exception) -> Record:
    refused = isinstance(error, KitError) and error.exit_code == _REFUSED
    return context.without_result(_failure(error), refused=refused)


def _failure(error: Exception) -> Failure:
    """Describe an error by module names: a record names no folder of the machine."""
    frames = tuple(
        f"{frame.f_globals.get('__name__', '?')}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    )
    return Failure(type(error).__name__, str(error), frames)
