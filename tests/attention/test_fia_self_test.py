"""Tier A: the self-test of a start finds every wrong call that tests/fia_faults.py plants."""

from __future__ import annotations

from typing import Any

import npu_emulation
import pytest
import torch
from fia_faults import (
    ILLEGAL,
    ILLEGAL_OVER_ROWS,
    SILENT,
    SILENT_OVER_PAGES,
    Plant,
    arguments,
    keys,
)

from kit.attention.ascend.fia import FiaDense, FiaPaged
from kit.attention.ascend.operators import Operators, load_operators
from kit.attention.ascend.start import self_test
from kit.kv.store import KVShape

SHAPE = KVShape(2, 2, 64, torch.bfloat16, torch.device("cpu"))
NUM_HEADS = 4


def reads_a_page_too_many(given: dict[str, Any]) -> None:
    """The next page is one of NaN, so a device that reads on gives NaN."""
    table = given["block_table"]
    first_free = int(table.max()) + 1
    more = torch.full_like(table[:, :1], first_free)
    given["block_table"] = torch.cat((table, more), dim=1)
    given["actual_seq_lengths_kv"] = [n + 128 for n in given["actual_seq_lengths_kv"]]


OF_DEVICES: dict[str, Plant] = {
    "keys past 512 are lost": keys(lambda n: min(n, 512)),
    "pages in the order of their ids": arguments(
        lambda given: given.update(block_table=given["block_table"].sort(dim=1).values)
    ),
    "a page too many": arguments(reads_a_page_too_many),
}
"""What a device would do, not a caller."""

PAGED = {name: plant for name, (plant, _) in ILLEGAL.items()} | SILENT | SILENT_OVER_PAGES
DENSE = {name: plant for name, (plant, _) in ILLEGAL_OVER_ROWS.items()} | SILENT
DENSE |= {"keys past 512 are lost": OF_DEVICES["keys past 512 are lost"]}


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    npu_emulation.install(monkeypatch.setitem)
    return load_operators()


def test_right_calls_pass(operators: Operators) -> None:
    assert self_test(FiaPaged(operators, NUM_HEADS), SHAPE, NUM_HEADS) is None
    assert self_test(FiaPaged(operators, NUM_HEADS, "BSH"), SHAPE, NUM_HEADS) is None
    assert self_test(FiaDense(operators, NUM_HEADS), SHAPE, NUM_HEADS) is None
    assert len(PAGED) >= 25


@pytest.mark.parametrize("plant", (PAGED | OF_DEVICES).values(), ids=(PAGED | OF_DEVICES).keys())
def test_the_self_test_finds(operators: Operators, plant: Plant) -> None:
    assert self_test(FiaPaged(plant(operators), NUM_HEADS), SHAPE, NUM_HEADS) is not None


@pytest.mark.parametrize("plant", DENSE.values(), ids=DENSE.keys())
def test_the_self_test_over_rows_finds(operators: Operators, plant: Plant) -> None:
    assert self_test(FiaDense(plant(operators), NUM_HEADS), SHAPE, NUM_HEADS) is not None
