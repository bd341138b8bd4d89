"""Ranks have places, and peers on each axis."""

from __future__ import annotations

import pytest

from kit.parallel.topology import Axis, Place, Topology

EIGHT = Topology(tensor=2, ulysses=2, cfg=2)


def test_tensor_varies_fastest_then_ulysses_then_cfg() -> None:
    assert EIGHT.size == 8
    assert [EIGHT.place(rank) for rank in (0, 1, 2, 4, 7)] == [
        Place(0, 0, 0),
        Place(1, 0, 0),
        Place(0, 1, 0),
        Place(0, 0, 1),
        Place(1, 1, 1),
    ]


@pytest.mark.parametrize(
    ("axis", "peers"), [("tensor", (4, 5)), ("ulysses", (5, 7)), ("cfg", (1, 5))]
)
def test_peers_differ_on_one_axis_only(axis: Axis, peers: tuple[int, ...]) -> None:
    assert EIGHT.peers(axis, 5) == peers


@pytest.mark.parametrize("axis", ["tensor", "ulysses", "cfg"])
def test_every_rank_stands_where_it_does_among_its_peers(axis: Axis) -> None:
    topology = Topology(tensor=3, ulysses=2, cfg=2)
    for rank in range(topology.size):
        assert topology.peers(axis, rank)[getattr(topology.place(rank), axis)] == rank


def test_reads_as_logs_write_it() -> None:
    assert str(Topology(tensor=4, cfg=2)) == "TP4+CFG2"
    assert str(Topology()) == "one rank"
