"""What the ranks of a worker group exchange."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from kit.parallel.topology import ONE_RANK, Axis, Topology

# Torch 2.13 renames it, and warns on every rank that uses the first name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class RankGroup:
    """Some ranks that exchange tensors; in a group of one every exchange returns at once.

    All ranks of the group make the same calls in the same order, on tensors of equal shape (but
    for `gather_uneven`) and dtype that lie on the rank's device. No call waits for the device.
    """

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None) -> None:
        assert (group is None) == (size == 1), "ranks that are alone have no group"
        self.rank, self.size, self._group = rank, size, group

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add the tensors of all ranks in place; returns `tensor`."""
        if self._group is not None:
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the tensors of all ranks joined along `dim`, in the order of ranks."""
        if self._group is None:
            return tensor
        first = tensor.movedim(dim, 0).contiguous()
        joined = first.new_empty((self.size * first.shape[0], *first.shape[1:]))
        _all_gather(joined, first, group=self._group)
        return joined.movedim(0, dim)

    def gather_uneven(self, tensor: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """Return the tensors of all ranks joined along `dim`, where rank i has `sizes[i]`."""
        assert tensor.shape[dim] == sizes[self.rank], "a rank brings as much as was said"
        longest = max(sizes)
        if min(sizes) == longest:
            return self.gather(tensor, dim)
        own = tensor.movedim(dim, 0)
        filled = own.new_zeros((longest, *own.shape[1:]))
        filled[: len(own)] = own
        joined = self.gather(filled, 0)
        cut = [joined[at * longest :][:size] for at, size in enumerate(sizes)]
        return torch.cat(cut).movedim(0, dim)

    def neighbours(self, edges: Tensor) -> Tensor:
        """Give edges[0] of [2, ...] to the rank before and edges[1] to the one after.

        Returns what they give, in this order too; zeros where there is none.
        """
        received = torch.zeros_like(edges)
        if self._group is None:
            return received
        peers = (self.rank - 1, self.rank + 1)
        there = slice(0 if peers[0] >= 0 else 1, 2 if peers[1] < self.size else 1)
        splits = [int(rank in peers) for rank in range(self.size)]
        dist.all_to_all_single(received[there], edges[there], splits, splits, group=self._group)
        return received

    def swap(self, tensor: Tensor) -> Tensor:
        """Send part i of [size, ...] to rank i; returns [size, ...], part i from rank i."""
        if self._group is None:
            return tensor
        assert tensor.shape[0] == self.size, "one part for every rank"
        parts = tensor.contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=self._group)
        return received


ALONE = RankGroup(0, 1, None)


class Mesh:
    """The groups that one rank of a worker group belongs to."""

    def __init__(
        self,
        topology: Topology,
        rank: int,
        groups: dict[Axis, RankGroup],
        everyone: RankGroup,
        host: dist.ProcessGroup | None,
    ) -> None:
        self.topology, self.rank, self.place = topology, rank, topology.place(rank)
        self.tensor, self.ulysses, self.cfg = (
            groups["tensor"],
            groups["ulysses"],
            groups["cfg"],
        )
        self.everyone = everyone
        self._host = host

    @property
    def is_leader(self) -> bool:
        """Whether this rank speaks for the group."""
        return self.rank == 0

    def first(self, count: int) -> RankGroup | None:
        """Make the group of the first `count` ranks, None on all others. Every rank asks."""
        assert 0 < count <= self.everyone.size, "a group has some of the ranks"
        if count == self.everyone.size:
            return self.everyone
        group = dist.new_group(list(range(count))) if count > 1 else None
        return RankGroup(self.rank, count, group) if self.rank < count else None

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on some rank. Every rank asks; this waits for all."""
        if self._host is None:
            return flag
        raised = torch.tensor([int(flag)])
        dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=self._host)
        return bool(raised.item())

    def close(self) -> None:
        """Leave the group; nothing can be exchanged afterwards."""
        if self._host is not None:
            dist.destroy_process_group()
            self._host = None


def single_mesh() -> Mesh:
    """Return the mesh of a rank that is alone."""
    return Mesh(ONE_RANK, 0, {"tensor": ALONE, "ulysses": ALONE, "cfg": ALONE}, ALONE, None)


def join_mesh(
    topology: Topology,
    rank: int,
    device: torch.device,
    rendezvous: str | None,
    *,
    backend: str = "gloo",
    timeout: timedelta = timedelta(minutes=10),
) -> Mesh:
    """Meet the other ranks at `rendezvous`, an init_method of torch such as tcp://host:port.

    `backend` is the platform's, see Platform.collective_backend.
    Waits until all ranks have come, at most `timeout`, which is also the longest that an exchange
    on the host may take. A rank that is alone needs no rendezvous.
    """
    if topology.size == 1:
        return single_mesh()
    assert rendezvous is not None, "ranks that share a request need a place to meet"
    dist.init_process_group(
        backend,
        init_method=rendezvous,
        rank=rank,
        world_size=topology.size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    groups: dict[Axis, RankGroup] = {
        "tensor": _own_group("tensor", topology, rank),
        "ulysses": _own_group("ulysses", topology, rank),
        "cfg": _own_group("cfg", topology, rank),
    }
    everyone = RankGroup(rank, topology.size, dist.group.WORLD)
    return Mesh(topology, rank, groups, everyone, dist.new_group(backend="gloo", timeout=timeout))


def _own_group(axis: Axis, topology: Topology, rank: int) -> RankGroup:
    """Return the group of `rank` on `axis`. Every rank makes all groups: torch wants it so."""
    own = ALONE
    for peers in sorted({topology.peers(axis, other) for other in range(topology.size)}):
        if len(peers) > 1:
            group = dist.new_group(list(peers))
            if rank in peers:
                own = RankGroup(peers.index(rank), len(peers), group)
    return own
