"""The paged KV mode: keys and values in pages that a Scheduler allocated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kit.attention.base import BackendInfo, Pass, StepKV
from kit.attention.kernel import PagedKernel, page_tables
from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary
from kit.errors import KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.modelspec.footprint import num_pages, pool_bytes
from kit.tokenizer.layout import Layout


class PagedKV:
    """A KVBackend: the worker's page pool and the kernel that reads it through page tables."""

    def __init__(self, name: str, store: PagedStore, kernel: PagedKernel) -> None:
        self.store, self._kernel = store, kernel
        self.info = BackendInfo(name, kernel.name, kernel.version, store.page_size)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the page pool."""
        return self.store.num_bytes

    def open(self, layout: Layout, num_rows: int, allocation: KVAllocation | None) -> PagedRequest:
        """Check the allocation and zero the tail of every row's last page; see KVBackend.open.

        Raises KVCacheError without an allocation, or with one that does not fit the request or
        the pool.
        """
        if allocation is None:
            raise KVCacheError(
                "allocation: got None, a paged request needs its page tables; it is never run "
                "dense. Reserve pages before the request is sent to a worker"
            )
        check_allocation(allocation, layout, num_rows, self.store)
        self.store.zero_tail(allocation)
        return PagedRequest(self.store, self._kernel, allocation)


class PagedRequest:
    """A RequestKV whose tokens live in the pages of one allocation."""

    def __init__(self, store: PagedStore, kernel: PagedKernel, allocation: KVAllocation) -> None:
        self.store, self._kernel, self._allocation = store, kernel, allocation
        self._tables = page_tables(allocation, store.shape.device)
        self.num_paged_calls = 0
        """Layers that the kernel has attended through page tables so far."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the request's pages."""
        return pool_bytes(self._allocation.num_pages, self.store.page_bytes)

    def step(self, plan: StepPlan) -> PagedStep:
        """Prepare one forward pass over `plan`; the result may be used for many steps."""
        assert plan.end <= self._allocation.num_tokens, "the plan ends within the reserved tokens"
        return PagedStep(self, self._kernel.step(self.store, self._tables, plan))

    def first_passes(self, plan: StepPlan) -> tuple[Pass, ...]:
        """Leave out the tokens that lie in the pages, and run those in common once.

        Rows with no whole page in common that is new share nothing here: their common tokens are
        fewer than a page, and another pass would cost more.
        """
        cached, shared = self._allocation.num_cached_tokens, self._allocation.num_shared_tokens
        num_rows, P = len(self._allocation.page_tables), self._allocation.page_size
        passes: list[Pass] = []
        start = cached
        if shared // P > cached // P:
            common = plan.between(cached, shared)
            inner = self._kernel.step(self.store, self._tables.first_row(), common)
            passes.append(Pass(PagedStep(self, inner, self._copies()), common, 1))
            start = shared
        rest = plan.between(start, plan.end)
        return (*passes, Pass(self.step(rest), rest, num_rows))

    def scrub(self) -> None:
        """Zero all slots of the pages that the request wrote to, unused ones too."""
        num_cached = self._allocation.num_cached_tokens // self._allocation.page_size
        tables = self._allocation.page_tables
        self.store.zero_pages({page for table in tables for page in table[num_cached:]})

    def _copies(self) -> SlotCopies | None:
        """Give every row the common tokens behind the last page that the rows share."""
        end, P = self._allocation.num_shared_tokens, self._allocation.page_size
        if end % P == 0:
            return None
        first, *others = self._tables.slots(end - end % P, end)
        return SlotCopies(first, torch.stack(others))


@dataclass(frozen=True)
class SlotCopies:
    """Slots whose keys and values are written again elsewhere."""

    source: Tensor
    """int64 [n]."""

    targets: Tensor
    """int64 [m, n]."""

    def run(self, store: PagedStore, layer: int) -> None:
        """Copy one layer's keys and values, bit for bit."""
        for pages in (store.keys[layer], store.values[layer]):
            slots = pages.view(-1, *pages.shape[2:])
            slots[self.targets] = slots[self.source]


class PagedStep:
    """The kernel's StepKV; counts what ran through it."""

    def __init__(
        self, request: PagedRequest, inner: StepKV, copies: SlotCopies | None = None
    ) -> None:
        """copies: made of what is written, layer by layer."""
        self._request, self._inner, self._copies = request, inner, copies

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self._inner.address_key

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """See StepKV.write."""
        q = self._inner.write(layer, qkv, rotary, norm)
        if self._copies is not None:
            self._copies.run(self._request.store, layer)
        return q

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """See StepKV.attend."""
        out = self._inner.attend(layer, q)
        self._request.num_paged_calls += 1
        return out


def check_allocation(
    allocation: KVAllocation, layout: Layout, num_rows: int, store: PagedStore
) -> None:
    """Raise KVCacheError unless every row has its own pages, but for those of common tokens.

    Devices do not check page ids: one out of range reads or writes foreign memory in silence.
    """
    P, tables = store.page_size, allocation.page_tables
    cached, shared = allocation.num_cached_tokens, allocation.num_shared_tokens
    pages_per_row, num_common = num_pages(layout.kv_len, P), shared // P
    # Of pages in common those of the first row stand for all.
    pages = [page for at, t in enumerate(tables) for page in t[num_common if at else 0 :]]
    problem = ""
    if allocation.page_size != P:
        problem = f"page_size is {allocation.page_size}, the pool's pages hold {P} tokens"
    elif len(tables) != num_rows:
        problem = f"page_tables has {len(tables)} rows, the request has {num_rows}"
    elif allocation.num_tokens != layout.kv_len:
        problem = f"num_tokens is {allocation.num_tokens}, a row has {layout.kv_len}"
    elif cached % P or not 0 <= cached <= layout.prefix_len:
        problem = f"num_cached_tokens is {cached}, the whole pages of a prefix end elsewhere"
    elif not 0 <= shared <= layout.prefix_len:
        problem = f"num_shared_tokens is {shared}, the prefix has {layout.prefix_len}"
    elif wrong := [len(table) for table in tables if len(table) != pages_per_row]:
        problem = f"a page table has {wrong[0]} pages, {layout.kv_len} tokens need {pages_per_row}"
    elif foreign := [page for page in pages if not 0 <= page < store.num_pages]:
        problem = f"page {foreign[0]} is not in the pool, which has {store.num_pages} pages"
    elif any(table[:num_common] != tables[0][:num_common] for table in tables):
        problem = f"rows share {shared} tokens, but not the {num_common} pages of them"
    elif len(set(pages)) != len(pages):
        twice = next(page for page in pages if pages.count(page) > 1)
        rows = [row for row, table in enumerate(tables) if twice in table]
        problem = f"page {twice} appears more than once in page_tables, in rows {rows}"
    if problem:
        raise KVCacheError(
            f"allocation of request {allocation.request_id} "
            f"(generation {allocation.generation}): {problem}"
        )
