"""Ranks exchange tensors: real processes, joined by gloo."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from ranks import run_ranks

from kit.parallel.group import Mesh, single_mesh
from kit.parallel.topology import Axis, Topology

_AXES: tuple[Axis, ...] = ("tensor", "ulysses")


def _exchange(mesh: Mesh) -> dict[str, list[float] | bool]:
    """Every exchange of every group; a rank's values are its number and ten times it."""
    warnings.simplefilter("error")  # what torch warns of here, users see once for every rank
    own = torch.tensor([float(mesh.rank), mesh.rank * 10.0])
    seen: dict[str, list[float] | bool] = {"any": mesh.any(mesh.rank == 3), "none": mesh.any(False)}
    for axis in _AXES:
        group = getattr(mesh, axis)
        seen[f"{axis} sum"] = group.sum_(own.clone()).tolist()
        seen[f"{axis} gather"] = group.gather(own[None], dim=1).flatten().tolist()
        seen[f"{axis} swap"] = group.swap(own[:, None]).flatten().tolist()
    rows = torch.full((mesh.rank + 1, 1), float(mesh.rank))
    seen["everyone uneven"] = mesh.everyone.gather_uneven(rows, 0, (1, 2, 3, 4)).flatten().tolist()
    seen["neighbours"] = mesh.everyone.neighbours(own[:, None]).flatten().tolist()
    first = mesh.first(3)
    seen["first"] = [] if first is None else first.sum_(own.clone()).tolist()
    seen["alone"] = [] if mesh.first(1) is None else [1.0]
    seen["everyone sum"] = mesh.everyone.sum_(own.clone()).tolist()
    return seen


def test_each_axis_exchanges_among_its_own_ranks(tmp_path: Path) -> None:
    ranks = run_ranks(Topology(tensor=2, ulysses=2), tmp_path, _exchange)
    assert ranks[2] == {
        "any": True,
        "none": False,
        "tensor sum": [5.0, 50.0],
        "tensor gather": [2.0, 20.0, 3.0, 30.0],
        "tensor swap": [2.0, 3.0],
        "ulysses sum": [2.0, 20.0],
        "ulysses gather": [0.0, 0.0, 2.0, 20.0],
        "ulysses swap": [0.0, 20.0],
        "everyone uneven": [0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0],
        "neighbours": [10.0, 3.0],
        "first": [3.0, 30.0],
        "alone": [],
        "everyone sum": [6.0, 60.0],
    }
    assert [rank["neighbours"] for rank in ranks] == [[0, 1], [0, 2], [10, 3], [20, 0]]
    assert [rank["first"] for rank in ranks] == [[3, 30], [3, 30], [3, 30], []]
    assert [rank["alone"] for rank in ranks] == [[1], [], [], []]
    assert ranks[1]["ulysses swap"] == [1.0, 3.0]
    assert ranks[0]["any"] is True


def test_a_rank_that_is_alone_gets_its_own_tensor_back() -> None:
    mesh, tensor = single_mesh(), torch.arange(3.0)
    for group in (mesh.tensor, mesh.ulysses, mesh.cfg, mesh.everyone):
        assert group.sum_(tensor) is tensor
        assert group.gather(tensor, 0) is tensor
        assert group.swap(tensor[None]).tolist() == [[0.0, 1.0, 2.0]]
    assert mesh.first(1) is mesh.everyone
    assert mesh.everyone.gather_uneven(tensor, 0, (3,)) is tensor
    assert mesh.everyone.neighbours(tensor[:2]).tolist() == [0, 0]
    assert mesh.is_leader
    assert mesh.any(True)
    assert not mesh.any(False)
