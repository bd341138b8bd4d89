"""Comparisons with a slowdown of 10 % in booking pages, and without: found, and made up."""

from __future__ import annotations

from dataclasses import replace

from bench.harness.load import LOADS, read_load
from bench.planted import PageBooking, find_planted
from bench.records import Record
from bench.registry import Context

PAIRS = 300
"""Of a comparison, unless more repeats are asked for."""


def run(context: Context) -> Record:
    """Make 20 comparisons with a planted slowdown and 20 without, a minute or two in all."""
    pairs = max(context.repeats, PAIRS)
    return find_planted(
        context, replace(read_load(LOADS / "vase.yaml"), requests=pairs), PageBooking()
    )
