"""A topology counts as validated only with a record in the repository that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.records import load
from kit.engine.preprocess import Preprocessor
from kit.engine.startup import plan_worker
from kit.errors import ConfigError, UnsupportedError
from kit.modelspec.deployment import load_config
from kit.parallel.topology import ONE_RANK, Topology
from kit.parallel.validated import VALIDATED, Validated, check_validated, is_validated, topology_of

RESULTS = Path(__file__).parents[2] / "bench" / "results"


@pytest.mark.parametrize("entry", VALIDATED, ids=lambda entry: f"{entry.platform} {entry.topology}")
def test_its_record_is_ok_and_names_it(entry: Validated) -> None:
    record = load(RESULTS / f"{entry.record}.json")
    assert record.status == "ok"
    named = record.parameters.get("topologies", [record.parameters.get("topology")])
    assert isinstance(named, list)
    assert str(entry.topology) in named


def test_one_rank_needs_no_record_and_others_need_one_of_their_platform() -> None:
    assert is_validated(ONE_RANK, "cuda")
    assert is_validated(Topology(tensor=2), "cpu")
    assert not is_validated(Topology(tensor=3), "cpu")
    assert not is_validated(Topology(tensor=2), "npu")


def test_another_topology_starts_on_request_only(checkpoint: Path) -> None:
    settings = {"cfg_parallel_size": 2, "ulysses_degree": 2, "tensor_parallel_size": 2}
    config = load_config(checkpoint, stage_overrides={"0": settings})
    assert topology_of(config) == Topology(2, 2, 2)
    with pytest.raises(UnsupportedError, match=r"TP2\+SP2\+CFG2 on cpu has not been validated"):
        check_validated(config, "cpu")
    allowed = settings | {"allow_unvalidated_topology": True}
    check_validated(load_config(checkpoint, stage_overrides={"0": allowed}), "cpu")


def test_heads_that_cannot_be_shared_are_named_before_a_record_is_asked_for(
    checkpoint: Path,
) -> None:
    config = load_config(checkpoint, stage_overrides={"0": {"tensor_parallel_size": 3}})
    with pytest.raises(ConfigError, match=r"parallel_config\.tensor_parallel_size: .* kv heads"):
        plan_worker(Preprocessor(checkpoint, config), config)
