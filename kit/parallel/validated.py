"""Which topologies a record shows equal to one rank; docs/parallelism.md lists them."""

from __future__ import annotations

from dataclasses import dataclass

from kit.config.deploy import DeployConfig
from kit.errors import UnsupportedError
from kit.parallel.topology import Topology


@dataclass(frozen=True)
class Validated:
    """A topology that ran on a platform."""

    platform: str
    topology: Topology
    record: str
    """Its name under bench/results."""


_TP2, _SP2, _CFG2 = Topology(tensor=2), Topology(ulysses=2), Topology(cfg=2)
_TP2_SP2, _TP2_CFG2 = Topology(tensor=2, ulysses=2), Topology(tensor=2, cfg=2)

VALIDATED: tuple[Validated, ...] = tuple(
    Validated("cpu", topology, "worker_groups")
    for topology in (_TP2, _SP2, _CFG2, _TP2_SP2, _TP2_CFG2)
)


def topology_of(config: DeployConfig) -> Topology:
    """Return how the ranks of each worker group share a request."""
    parallel = config.stage.parallel_config
    return Topology(
        parallel.tensor_parallel_size, parallel.sequence_size, parallel.cfg_parallel_size
    )


def is_validated(topology: Topology, platform: str) -> bool:
    """Whether a topology has a record on a platform; one rank needs none."""
    return topology.size == 1 or any(
        (entry.platform, entry.topology) == (platform, topology) for entry in VALIDATED
    )


def check_validated(config: DeployConfig, platform: str) -> None:
    """Raise UnsupportedError for a topology without a record, unless the deployment allows it."""
    topology = topology_of(config)
    if is_validated(topology, platform) or config.stage.allow_unvalidated_topology:
        return
    known = [str(entry.topology) for entry in VALIDATED if entry.platform == platform]
    raise UnsupportedError(
        f"stages[0].parallel_config: {topology} on {platform} has not been validated (validated "
        f"there: {', '.join(known) or 'one rank only'}); use one of these, or set "
        "allow_unvalidated_topology to true"
    )
