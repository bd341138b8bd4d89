"""How ranks share the processors of a host."""

from __future__ import annotations

import pytest

from kit.executor.cpus import CpuShare, share_cpus

CPUS = (0, 1, 2, 4, 6, 8, 9)


def test_ranks_on_the_cpu_keep_to_neighbours_of_their_own() -> None:
    shares = share_cpus(3, on_cpu=True, usable=CPUS, environment={})
    assert shares == (CpuShare((0, 1), 2), CpuShare((2, 4), 2), CpuShare((6, 8), 2))


def test_one_rank_alone_is_left_as_it_is() -> None:
    assert share_cpus(1, on_cpu=True, usable=CPUS, environment={}) == (CpuShare((), None),)


def test_ranks_of_accelerators_share_threads_and_run_anywhere() -> None:
    assert share_cpus(2, on_cpu=False, usable=CPUS, environment={}) == (CpuShare((), 3),) * 2


def test_more_ranks_than_processors_have_a_thread_each_anywhere() -> None:
    assert share_cpus(8, on_cpu=True, usable=CPUS, environment={}) == (CpuShare((), 1),) * 8


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_number_of_threads_in_the_environment_stays(on_cpu: bool) -> None:
    shares = share_cpus(2, on_cpu=on_cpu, usable=CPUS, environment={"OMP_NUM_THREADS": "4"})
    assert [share.num_threads for share in shares] == [None, None]
