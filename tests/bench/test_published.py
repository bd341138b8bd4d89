"""The table of published figures beside our records: what it says, and what it must not hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.agreement import text_of
from bench.environment import capture
from bench.published import ALL_TOPOLOGIES, image_table, meets_limits, part_table
from bench.rank_memory import predicted_bytes
from bench.rank_model import PUBLISHED
from bench.rank_requests import RankResult
from bench.records import Record
from bench.registry import Context
from bench.runner import run
from bench.statistics import paired_ratio
from bench.workloads.published_topologies import Case, record_of
from kit.parallel.topology import Topology

TP4, TP2_SP2 = Topology(tensor=4), Topology(tensor=2, ulysses=2)
GIB = 2**30
DENSE_S = (*(1.20 + 0.001 * at for at in range(29)), 1.5)
"""Mean 1.2235, median 1.2145, p88 1.226."""

ENVIRONMENT = cache(capture)


def context_of(topology: Topology) -> Context:
    whole = Context("published_topologies", ("python",), ENVIRONMENT(), repeats=30)
    return whole.of(str(topology))


def rows(seconds: Sequence[float], peak_bytes: int) -> list[dict[str, float]]:
    return [
        {
            "image_s": image_s,
            "prepare_s": 0.004,
            "first_step_s": 0.2,
            "later_steps_s": image_s - 0.304,
            "decode_s": 0.1,
            "is_picture": True,
            "difference": 0.0,
            "peak_bytes": peak_bytes,
        }
        for image_s in seconds
    ]


def record(
    dense_s: Sequence[float] = DENSE_S,
    paged_over_dense: float | npt.NDArray[np.float64] = 1.0,
    *,
    topology: Topology = TP4,
    num_layers: int = 32,
    difference: float = 0.0,
    num_without_picture: int = 0,
) -> Record:
    setting = replace(PUBLISHED, num_layers=num_layers)
    paged = rows((paged_over_dense * np.asarray(dense_s)).tolist(), 50 * GIB)
    paged[-1]["difference"] = difference
    for row in paged[:num_without_picture]:
        row["is_picture"] = False
    result = RankResult(
        error_against_one_rank=0.01,
        create_s=1.0,
        start_s=30.0,
        weight_bytes=40 * GIB,
        pool_bytes=GIB,
        device_bytes=60 * GIB,
        latents=np.zeros((1, 1, 1, 1), np.float32),
        rows={"baseline": rows(dense_s, 50 * GIB), "candidate": paged},
    )
    results = [result] * topology.size
    return record_of(context_of(topology), Case(topology, setting), results, None, 100.0)


def cells(table: str, topology: str, mode: str | None = None) -> list[str]:
    (line,) = (
        line
        for line in table.splitlines()
        if f"| {topology} |" in line and (mode is None or f"| {mode} |" in line)
    )
    return [cell.strip() for cell in line.strip("|").split("|")]


def image_cells(made: Record, topology: str = "TP4") -> list[str]:
    return cells(image_table({made.name: made}), topology)


def test_figures_of_the_report_stand_without_a_record() -> None:
    table = image_table({})
    not_run = ["not run"] * 5
    assert cells(table, "TP4") == ["4", "TP4", "2.278", "2.290", *not_run, ""]
    assert cells(table, "TP2+SP2") == ["4", "TP2+SP2", "2.395", "2.358", *not_run, ""]
    assert cells(table, "TP2+CFG2") == ["4", "TP2+CFG2", "2.175", "2.194", *not_run, ""]
    assert cells(table, "TP8") == ["8", "TP8", "", "", *not_run, ""]
    assert len(table.splitlines()) == 2 + len(ALL_TOPOLOGIES)
    assert cells(part_table({}), "TP8", "paged_scheduler")[2:] == ["not run"] * 7


def test_a_record_stands_in_its_own_line() -> None:
    made = record()
    assert image_cells(made) == [
        *("4", "TP4", "2.278", "2.290", "1.224", "1.224"),
        *("1 [1, 1]", "equal", "60 of 60", "yes"),
    ]
    assert image_cells(made, "TP2+SP2")[4] == "not run"


def test_parts_of_a_record() -> None:
    made = record(paged_over_dense=1.005)
    assert made.name == "published_topologies_tp4"
    table = part_table({made.name: made})
    dense = cells(table, "TP4", "dense_legacy")
    assert dense[2].startswith("1.214 [1.2")
    assert dense[3].startswith("p88 1.226 [1.2")
    assert dense[4:8] == ["0.0040", "0.2000", f"{(1.2145 - 0.304) / 7:.4f}", "0.1000"]
    stores = {name: size / GIB for name, size in predicted_bytes(PUBLISHED, TP4).items()}
    assert stores["dense_rows"] > stores["pages"] + 1
    assert dense[8] == f"{50 - stores['pages']:.1f}"
    paged = cells(table, "TP4", "paged_scheduler")
    assert paged[8] == f"{50 - stores['dense_rows']:.1f}"
    assert float(paged[2].split()[0]) > float(dense[2].split()[0])


def test_a_small_sample_gets_no_percentile() -> None:
    made = record(DENSE_S[:5])
    assert cells(part_table({made.name: made}), "TP4", "dense_legacy")[2:4] == ["", ""]
    assert image_cells(made)[-2:] == ["10 of 10", "no"]


@pytest.mark.parametrize(
    ("given", "at", "shown"),
    [
        ({"paged_over_dense": 1.02}, 6, "1.02 [1.02, 1.02]"),
        ({"dense_s": [*DENSE_S[:29], 4.0]}, 4, "1.307"),
        ({"difference": 0.5}, 7, "NOT EQUAL: 0.5"),
        ({"num_without_picture": 2}, 8, "58 of 60"),
        ({"dense_s": DENSE_S[:29]}, 8, "58 of 58"),
    ],
    ids=["slower paged", "mean", "unequal", "no picture", "few"],
)
def test_what_is_not_as_wanted_is_shown(given: dict[str, Any], at: int, shown: str) -> None:
    made = record(**given)
    assert not meets_limits(made)
    line = image_cells(made)
    assert line[at] == shown
    assert line[-1] == "no"


def test_the_interval_of_the_ratio_is_of_pairs_and_of_95_percent() -> None:
    ratios = np.random.RandomState(1).normal(1.0, 0.02, len(DENSE_S))
    made = record(paged_over_dense=ratios)
    paged_s = [ratio * dense_s for ratio, dense_s in zip(ratios, DENSE_S, strict=True)]
    wanted = paired_ratio(paged_s, DENSE_S, 0.95)
    assert image_cells(made)[6] == text_of(wanted)
    assert text_of(wanted) != text_of(paired_ratio(paged_s, DENSE_S, 0.99))


def test_a_run_that_broke_or_was_refused_says_so() -> None:
    def breaks(context: Context) -> Record:
        raise ZeroDivisionError(context.name)

    made = run(context_of(TP2_SP2), breaks)
    assert image_cells(made, "TP2+SP2")[4:] == ["failed"] * 5 + ["no"]
    table = part_table({made.name: made})
    assert cells(table, "TP2+SP2", "paged_scheduler")[2:] == ["failed"] * 7


def test_fewer_layers_are_named_and_two_cards_have_no_limit() -> None:
    made = record(topology=Topology(ulysses=2), num_layers=24)
    assert image_cells(made, "SP2, 24 of 32 layers")[-1] == ""
