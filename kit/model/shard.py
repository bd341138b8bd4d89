"""What of the model lies on one rank, and how strict Ulysses ranks exchange tokens for heads.

Axis letters: B rows, T tokens, t tokens of one rank, U Ulysses ranks, K kv heads, H query heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from kit.parallel.group import ALONE, Mesh, RankGroup


@dataclass(frozen=True)
class Shard:
    """How a model's layers are shared; a rank that is alone has all of them."""

    tensor: RankGroup = ALONE
    """Ranks that share the heads and the experts; each adds a part of every output."""

    ulysses: RankGroup = ALONE
    """Ranks that share the tokens, and around attention the heads of a tensor rank."""

    whole_experts: bool = False
    """Tensor ranks have whole experts, as many each, in place of slices of all."""

    @classmethod
    def of(cls, mesh: Mesh, *, whole_experts: bool = False) -> Shard:
        """Return what the layers of the rank of `mesh` need to know."""
        return cls(mesh.tensor, mesh.ulysses, whole_experts)

    @property
    def head_ranks(self) -> int:
        """Ranks that share the keys and values of a row."""
        return self.tensor.size * self.ulysses.size


WHOLE = Shard()


@dataclass(frozen=True)
class Cut:
    """The part of a stored tensor that one rank holds."""

    dim: int
    rank: int
    size: int
    blocks: int = 1
    """Equal blocks along `dim`, of each of which the rank has its part: 2 for gate and up."""

    def of(self, tensor: Tensor) -> list[Tensor]:
        """Return views of the rank's part of each block of a whole tensor."""
        if self.size == 1:
            return [tensor]
        block = tensor.shape[self.dim] // self.blocks
        part = block // self.size
        return [
            tensor.narrow(self.dim, at * block + self.rank * part, part)
            for at in range(self.blocks)
        ]

    def share(self, num_bytes: int) -> int:
        """Return the bytes of the rank's part of a tensor of so many as stored."""
        return num_bytes // self.size

    def places(self, own: Tensor) -> list[Tensor]:
        """Return views of where the parts that `of` gives lie in the rank's own tensor."""
        if self.size == 1:
            return [own]
        return list(own.chunk(self.blocks, self.dim))


class SlicedLinear(nn.Linear):
    """A linear layer without bias of which each tensor rank holds a part."""

    def __init__(self, width_in: int, width_out: int, cut: Cut) -> None:
        """Give the widths of the whole layer."""
        widths = [width_out, width_in]
        assert widths[cut.dim] % (cut.size * cut.blocks) == 0, "checked before a start"
        widths[cut.dim] //= cut.size
        super().__init__(widths[1], widths[0], bias=False)
        self.cut = cut


def sliced_outputs(width_in: int, width_out: int, group: RankGroup, blocks: int = 1) -> nn.Linear:
    """Return a layer whose outputs the ranks of `group` share."""
    return SlicedLinear(width_in, width_out, Cut(0, group.rank, group.size, blocks))


def sliced_inputs(width_in: int, width_out: int, group: RankGroup) -> nn.Linear:
    """Return a layer whose inputs the ranks of `group` share; its output is one term of a sum."""
    return SlicedLinear(width_in, width_out, Cut(1, group.rank, group.size))


def own_tokens(x: Tensor, group: RankGroup) -> Tensor:
    """Take this rank's tokens of [B, T, ...]: [B, t, ...], t = T / U rounded up.

    What is missing at the end of the last ranks is filled with zeros.
    """
    if group.size == 1:
        return x
    t = -(-x.shape[1] // group.size)
    own = x[:, group.rank * t : (group.rank + 1) * t]
    return _padded(own, t).contiguous()


def all_tokens(own: Tensor, group: RankGroup, num_tokens: int) -> Tensor:
    """Return the [B, T, ...] that the ranks took [B, t, ...] of, on every rank."""
    return group.gather(own, 1)[:, :num_tokens]


def tokens_to_heads(own: Tensor, group: RankGroup, num_tokens: int) -> Tensor:
    """Exchange all heads of own tokens [B, t, K, ...] for own heads of all [B, T, K/U, ...].

    Tokens that fill the end are dropped here, so they get no key and no value.
    """
    if group.size == 1:
        return own
    parts = _split(own, 2, group.size).movedim(2, 0)  # [U, B, t, K/U, ...]
    received = group.swap(parts).movedim(0, 1).flatten(1, 2)  # [B, U*t, K/U, ...]
    return received[:, :num_tokens].contiguous()


def heads_to_tokens(heads: Tensor, group: RankGroup) -> Tensor:
    """Exchange own heads of all tokens [B, T, H/U, D] for all heads of own [B, t, H, D]."""
    if group.size == 1:
        return heads
    t = -(-heads.shape[1] // group.size)
    parts = _split(_padded(heads, group.size * t), 1, group.size).movedim(1, 0)
    return group.swap(parts).movedim(0, 2).flatten(2, 3)  # [U, B, t, H/U, D] -> [B, t, H, D]


def _padded(x: Tensor, length: int) -> Tensor:
    """Fill [B, T, ...] with zeros up to `length` tokens."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1]))


def _split(x: Tensor, dim: int, size: int) -> Tensor:
    """Make an axis [n] into two, [size, n / size]."""
    return x.view(*x.shape[:dim], size, x.shape[dim] // size, *x.shape[dim + 1 :])
