"""The tensors that hold keys and values: a pool of pages, or contiguous rows of one request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kit.kv.allocation import KVAllocation
from kit.modelspec.footprint import KEPT_ROW_GRAIN, num_pages


@dataclass(frozen=True)
class KVShape:
    """What one token's keys and values look like on one rank."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def zeros(self, *leading: int) -> tuple[Tensor, ...]:
        """Return one zeroed tensor [*leading, K, D] per layer."""
        # Not empty: a kernel may multiply an unused slot by a zero weight, and 0 x NaN is NaN.
        return tuple(
            torch.zeros(
                *leading, self.num_kv_heads, self.head_dim, dtype=self.dtype, device=self.device
            )
            for _ in range(self.num_layers)
        )


class PagedStore:
    """The page pool of one worker: keys and values [N, P, K, D] of each layer, zeros at start."""

    def __init__(self, shape: KVShape, num_pages: int, page_size: int) -> None:
        self.shape, self.num_pages, self.page_size = shape, num_pages, page_size
        self.keys = shape.zeros(num_pages, page_size)
        self.values = shape.zeros(num_pages, page_size)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool, all layers."""
        return sum(tensor.nbytes for tensor in self.keys + self.values)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return self.num_bytes // self.num_pages

    def zero_tail(self, allocation: KVAllocation) -> None:
        """Zero the slots of every row's last page that lie past the row's last token, in place."""
        P = self.page_size
        first_unused = allocation.num_tokens - (len(allocation.page_tables[0]) - 1) * P
        slots = [
            table[-1] * P + offset
            for table in allocation.page_tables
            for offset in range(first_unused, P)
        ]
        if slots:
            self._zero(slots, self.num_pages * P)

    def zero_pages(self, pages: Iterable[int]) -> None:
        """Zero every slot of `pages` in place."""
        ids = list(pages)
        if ids:
            self._zero(ids, self.num_pages)

    def _zero(self, indices: list[int], num_units: int) -> None:
        """Zero units of the pool cut into `num_units` equal parts: pages or slots."""
        ids = torch.tensor(indices, dtype=torch.int64, device=self.shape.device)
        for tensor in self.keys + self.values:
            tensor.view(num_units, -1).index_fill_(0, ids, 0)


class DenseStore:
    """The keys and values of one request: contiguous [B, S, K, D] of each layer, finite."""

    def __init__(
        self, shape: KVShape, keys: tuple[Tensor, ...], values: tuple[Tensor, ...], *, is_kept: bool
    ) -> None:
        """is_kept: the memory stays at its address when the request ends."""
        self.shape, self.keys, self.values, self.is_kept = shape, keys, values, is_kept
        self.num_rows, self.num_tokens = keys[0].shape[:2]

    @classmethod
    def take(cls, shape: KVShape, num_rows: int, num_tokens: int) -> DenseStore:
        """Take zeroed tensors that go when the request ends."""
        zeros = shape.zeros(num_rows, num_tokens), shape.zeros(num_rows, num_tokens)
        return cls(shape, *zeros, is_kept=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows, all layers."""
        return sum(tensor.nbytes for tensor in self.keys + self.values)

    def zero(self) -> None:
        """Zero every slot in place."""
        for tensor in self.keys + self.values:
            tensor.zero_()


class KeptRows:
    """Memory for the contiguous rows of every request, one after another, at one address.

    A captured graph holds addresses, so a request whose rows lay elsewhere could not replay it.
    """

    def __init__(self, shape: KVShape, max_rows: int, max_tokens: int) -> None:
        self.shape, self._max_tokens = shape, _kept_length(max_tokens)
        self._keys = shape.zeros(max_rows * self._max_tokens)
        self._values = shape.zeros(max_rows * self._max_tokens)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows, all layers."""
        return sum(tensor.nbytes for tensor in self._keys + self._values)

    def take(self, num_rows: int, num_tokens: int) -> DenseStore:
        """Return rows of at least `num_tokens` tokens; what earlier requests wrote lies in them."""
        capacity = _kept_length(num_tokens)
        assert capacity <= self._max_tokens, "no row is longer than the longest"

        def rows(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(
                flat[: num_rows * capacity].view(num_rows, capacity, *flat.shape[1:])
                for flat in tensors
            )

        return DenseStore(self.shape, rows(self._keys), rows(self._values), is_kept=True)


def _kept_length(num_tokens: int) -> int:
    """Prompts of many lengths share a length, so that they share a graph."""
    return num_pages(num_tokens, KEPT_ROW_GRAIN) * KEPT_ROW_GRAIN
