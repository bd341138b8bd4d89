"""Whole requests on the published topologies: small, on processes of this machine, by gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from planted_ranks import (
    LOST_S,
    OFF_BY,
    SlowPages,
    breaks_on_two,
    other_latents,
    other_weights,
)
from rank_settings import tiny_setting

from bench import agreement
from bench.environment import capture
from bench.published import ALL_TOPOLOGIES, PUBLISHED_FIGURES
from bench.rank_memory import UTILIZATION, predicted_bytes
from bench.rank_model import PUBLISHED, Requests, Setting
from bench.rank_requests import RankResult, measure_rank
from bench.records import Record
from bench.registry import Context
from bench.workloads.published_topologies import Case, measure, record_of, setting_of, topologies_of
from kit.errors import UnsupportedError
from kit.parallel.group import single_mesh
from kit.parallel.topology import ONE_RANK, Topology
from kit.plan.device import CARDS

TP2, SP2, CFG2 = Topology(tensor=2), Topology(ulysses=2), Topology(cfg=2)
OnRank = Callable[..., RankResult]


ENVIRONMENT = cache(capture)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return tiny_setting(tmp_path_factory.mktemp("setting"))


@pytest.fixture(scope="module")
def alone(setting: Setting) -> RankResult:
    return in_this_process(setting)


def context() -> Context:
    command = ("python", "-m", "bench", "run", "published_topologies")
    return Context("published_topologies", command, ENVIRONMENT(), repeats=2)


def records_of(
    setting: Setting, topologies: Sequence[Topology], on_rank: OnRank = measure_rank
) -> list[Record]:
    return list(measure(context(), [Case(each, setting) for each in topologies], on_rank))


def in_this_process(setting: Setting, requests: type[Requests] = Requests) -> RankResult:
    return measure_rank(single_mesh(), torch.device("cpu"), setting, 2, requests)


def record_alone(setting: Setting, result: RankResult, whole_error: float = 0.0) -> Record:
    case = Case(ONE_RANK, setting)
    return record_of(context(), case, [result], ("TP2", whole_error), 1.0)


@pytest.mark.parametrize(
    ("num", "names"),
    [
        (2, "TP2 SP2 CFG2"),
        (3, "TP2 SP2 CFG2"),
        (4, "TP4 TP2+SP2 TP2+CFG2"),
        (7, "TP4 TP2+SP2 TP2+CFG2"),
        (8, "TP4 TP2+SP2 TP2+CFG2 TP8 TP4+CFG2"),
    ],
)
def test_what_so_many_cards_hold(num: int, names: str) -> None:
    assert [str(topology) for topology in topologies_of(num)] == names.split()


def test_every_rank_fits_on_the_card_of_our_records_and_whole_weights_would_not() -> None:
    room = UTILIZATION * CARDS["H200"].total_bytes
    for topology in ALL_TOPOLOGIES:
        setting = setting_of(topology)
        assert setting.num_layers == (24 if topology.tensor == 1 else 32)
        assert sum(predicted_bytes(setting, topology).values()) < room
    assert sum(predicted_bytes(PUBLISHED, SP2).values()) > room


def check_equal(record: Record, topology: Topology) -> None:
    assert record.status == "ok", record.error
    assert record.parameters["topology"] == str(topology)
    assert record.equality is not None
    assert record.equality.seen == 0
    assert record.findings["error_against_one_rank"] < 1e-4
    assert record.findings.get("whole_error_against_one_rank", 0) < 1e-4
    assert record.findings["pictures"] == 4
    predicted = record.parameters["predicted_bytes_of_a_rank"]
    assert isinstance(predicted, dict)
    # What a rank really holds: its part, and pages for its own rows and heads.
    assert record.parameters["weight_bytes_of_a_rank"] == [predicted["weights"]] * topology.size
    assert record.parameters["pool_bytes_of_a_rank"] == [predicted["pages"]] * topology.size
    for side in (record.baseline, record.candidate):
        assert side is not None
        assert len(side.rows) == 2
        for row in side.rows:
            names = ("prepare_s", "first_step_s", "later_steps_s", "decode_s")
            parts = [row[name] for name in names]
            assert sum(parts) == pytest.approx(row["image_s"])  # type: ignore[arg-type]


def check_compared_with_one_rank(records: Sequence[Record]) -> None:
    compared = ["whole_error_against_one_rank" in record.findings for record in records]
    assert compared == [False] + [True] * (len(records) - 1)


def test_two_ranks(setting: Setting) -> None:
    (record,) = records_of(setting, (TP2,))
    check_equal(record, TP2)
    assert record.name == "published_topologies_tp2"
    assert record.command[-3:] == ("published_topologies", "--only", "TP2")
    # Another order of sums: the ranks really had a part each.
    assert record.findings["error_against_one_rank"] > 0


@pytest.mark.long
def test_every_topology_of_two_ranks(setting: Setting) -> None:
    topologies = (ONE_RANK, TP2, SP2, CFG2)
    records = records_of(setting, topologies)
    for record, topology in zip(records, topologies, strict=True):
        check_equal(record, topology)
    check_compared_with_one_rank(records)


@pytest.mark.long
def test_every_topology_of_four_ranks(setting: Setting) -> None:
    topologies = (ONE_RANK, *(figure.topology for figure in PUBLISHED_FIGURES))
    records = records_of(setting, topologies)
    for record, topology in zip(records, topologies, strict=True):
        check_equal(record, topology)
    check_compared_with_one_rank(records)
    # Another order of sums: the ranks really had a part each.
    assert records[1].findings["whole_error_against_one_rank"] > 0


def test_a_slower_mode_shows(setting: Setting) -> None:
    record = record_alone(setting, in_this_process(setting, SlowPages))
    assert record.status == "ok", record.error
    ratio = record.summary["image"].paired
    assert ratio is not None
    assert ratio.value > 1.1
    assert record.candidate is not None
    for paged in record.candidate.rows:
        assert paged["first_step_s"] >= LOST_S  # type: ignore[operator]
        assert paged["later_steps_s"] >= LOST_S  # type: ignore[operator]


def test_a_request_without_a_picture_fails_the_record(setting: Setting, alone: RankResult) -> None:
    assert record_alone(setting, alone).status == "ok"
    first, second = alone.rows["candidate"]
    rows = {**alone.rows, "candidate": [first, {**second, "is_picture": False}]}
    record = record_alone(setting, replace(alone, rows=rows))
    assert record.status == "failed"
    assert record.equality is not None
    assert record.equality.seen == 1
    assert record.findings["pictures"] == 3


def test_an_error_above_its_limit_fails_the_record(setting: Setting, alone: RankResult) -> None:
    assert record_alone(setting, replace(alone, error_against_one_rank=0.9e-4)).status == "ok"
    above = replace(alone, error_against_one_rank=1.1e-4)
    assert record_alone(setting, above).status == "failed"
    assert record_alone(setting, alone, whole_error=0.9e-4).status == "ok"
    failed = record_alone(setting, alone, whole_error=1.1e-4)
    assert failed.status == "failed"
    assert failed.findings["whole_error_against_tp2"] == 1.1e-4


@pytest.mark.long
def test_other_latents_of_one_rank_in_one_request_fail_the_record(setting: Setting) -> None:
    (record,) = records_of(setting, (TP2,), other_latents)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.kind == "NotEqual"
    assert record.equality is not None
    assert record.equality.seen == pytest.approx(OFF_BY, rel=1e-3)


@pytest.mark.long
def test_other_latents_of_a_topology_fail_its_record_only(setting: Setting) -> None:
    one, two = records_of(setting, (ONE_RANK, TP2), other_weights)
    assert (one.status, two.status) == ("ok", "failed")
    assert two.equality is not None
    assert two.equality.seen == 1


@pytest.mark.long
def test_a_topology_that_breaks_leaves_the_others(setting: Setting) -> None:
    two, one = records_of(setting, (TP2, ONE_RANK), breaks_on_two)
    assert (two.status, one.status) == ("failed", "ok")
    assert two.error is not None
    assert "planted" in two.error.message
    assert two.name == "published_topologies_tp2"


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(setting: Setting) -> None:
    large = replace(setting, grid=(16384, 16384))
    (record,) = records_of(large, (TP2,))
    assert record.status == "refused"
    assert record.error is not None
    assert record.error.kind == UnsupportedError.__name__
    assert "TP2: a rank with 2 layers needs" in record.error.message
    assert "weights 0.0, pages" in record.error.message


def test_two_runs_of_a_topology_can_be_held_against_each_other(
    setting: Setting, alone: RankResult
) -> None:
    once = record_alone(setting, alone)
    other = record_alone(setting, replace(alone, create_s=9.0, start_s=9.0, device_bytes=9))
    assert all(one.agrees is not False for one in agreement.check(once, other))
