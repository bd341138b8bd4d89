"""What a kernel must offer so that a KV backend can drive it.

A kernel knows no request. Before a forward pass it turns the plan into whatever its calls want
(slot ids, length lists, masks), once for all layers, and returns a StepKV that carries them. So
a kernel that takes `page_table` and `cache_seqlens`, one that takes host lists, and the CPU
reference stand behind the same backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kit.attention.base import StepKV
from kit.attention.plan import StepPlan
from kit.kv.allocation import KVAllocation
from kit.kv.store import DenseStore, PagedStore


@dataclass(frozen=True)
class PageTables:
    """The page tables of one request on the store's device."""

    pages: Tensor
    """int32 [B, pages per row]: page ids in token order."""

    page_size: int

    def slots(self, start: int, stop: int) -> Tensor:
        """Return the slots of tokens [start, stop) of every row: int64 [B, stop - start].

        slot = page * P + position % P, an index into a pool viewed as [N * P, K, D].
        """
        positions = torch.arange(start, stop, device=self.pages.device)
        pages = self.pages[:, positions // self.page_size].long()
        return pages * self.page_size + positions % self.page_size

    def first_row(self) -> PageTables:
        """Return the table of the first row alone."""
        return PageTables(self.pages[:1], self.page_size)


def page_tables(allocation: KVAllocation, device: torch.device) -> PageTables:
    """Copy the page ids of a valid allocation to `device`."""
    pages = torch.tensor(allocation.page_tables, dtype=torch.int32, device=device)
    return PageTables(pages, allocation.page_size)


class PagedKernel(Protocol):
    """Writes keys and values into pages and attends to them through page tables."""

    @property
    def name(self) -> str:
        """What `BackendInfo.kernel` says."""
        ...

    @property
    def version(self) -> str:
        """What `BackendInfo.version` says."""
        ...

    def step(self, store: PagedStore, tables: PageTables, plan: StepPlan) -> StepKV:
        """Prepare one forward pass over `plan`; the result may be used for many steps."""
        ...


class DenseKernel(Protocol):
    """Writes keys and values into contiguous rows and attends to them."""

    @property
    def name(self) -> str:
        """What `BackendInfo.kernel` says."""
        ...

    @property
    def version(self) -> str:
        """What `BackendInfo.version` says."""
        ...

    def step(self, store: DenseStore, plan: StepPlan) -> StepKV:
        """Prepare one forward pass over `plan`; the result may be used for many steps."""
        ...
