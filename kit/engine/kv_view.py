"""Who holds which pages, and what lies in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from kit.config.deploy import KVMode
from kit.engine.status import PageCounts
from kit.kv.allocation import KVAllocation
from kit.request import StepEvent
from kit.scheduler.scheduler import Holding
from kit.tokenizer.layout import Layout

PageKind = Literal["prefix", "target", "shared"]
"""prefix: holds nothing but the prefix of its row; target: holds target tokens, perhaps after the
end of the prefix; shared: prefix of several rows or requests. Tail slots are no page of their own.
"""


@dataclass(frozen=True)
class PageView:
    """One page of a row."""

    page: int
    """Its number; the pages of a group follow those of the group before."""

    kind: PageKind
    num_tokens: int
    """Slots that hold a token."""

    tail_slots: int
    """Slots behind the end of the row, zeroed and never written; only in a row's last page."""


@dataclass(frozen=True)
class RequestView:
    """A request that holds pages."""

    request_id: str
    group: int
    state: Literal["admitted", "running"]
    generation: int
    """Grows with every reservation."""

    prefix_tokens: int
    """Tokens of one row that are written by the first step only."""

    target_tokens: int
    """Tokens of one row that every step writes anew."""

    cached_tokens: int
    """Leading tokens of each row that an earlier request had computed."""

    shared_tokens: int
    """Leading tokens that are the same in all rows of a rank."""

    step: int
    """Steps made so far."""

    num_steps: int
    tokens_written: int
    """Key/value tokens that the last step wrote, all rows together; 0 before the first."""

    rows: tuple[tuple[PageView, ...], ...]
    """The page table of each row in token order; the conditional row is the first."""


@dataclass(frozen=True)
class KVView:
    """The page pools of all groups at one moment."""

    version: int
    """Another number means that something may have changed."""

    mode: KVMode
    page_size: int | None
    """Token slots per page; None, and no request listed, in dense_legacy."""

    page_bytes: int
    pages: PageCounts
    groups: tuple[PageCounts, ...]
    """The pool of each group; `pages` is their sum."""

    requests: tuple[RequestView, ...]
    """Those that run in the order of their groups, then those admitted, the oldest first."""


def view_request(
    holding: Holding,
    layout: Layout,
    num_steps: int,
    last: StepEvent | None,
    *,
    shared: Collection[int] = (),
    first_page: int = 0,
) -> RequestView:
    """Say what a request holds; `last` is its last step, None before the first.

    shared: pages that stand in several tables, of one request or more.
    first_page: number of the first page of its group.
    """
    return RequestView(
        request_id=holding.request_id,
        group=holding.group,
        state="running" if holding.is_running else "admitted",
        generation=holding.allocation.generation,
        prefix_tokens=layout.prefix_len,
        target_tokens=layout.target_len,
        cached_tokens=holding.allocation.num_cached_tokens,
        shared_tokens=holding.allocation.num_shared_tokens,
        step=last.step if last else 0,
        num_steps=num_steps,
        tokens_written=last.tokens_written if last else 0,
        rows=view_rows(holding.allocation, layout, shared, first_page),
    )


def shared_pages(holdings: Iterable[Holding]) -> dict[int, set[int]]:
    """Return, by group, the pages that stand in several tables."""
    seen: dict[int, set[int]] = {}
    shared: dict[int, set[int]] = {}
    for holding in holdings:
        for table in holding.allocation.page_tables:
            known = seen.setdefault(holding.group, set())
            shared.setdefault(holding.group, set()).update(known.intersection(table))
            known.update(table)
    return shared


def view_rows(
    allocation: KVAllocation, layout: Layout, shared: Collection[int] = (), first_page: int = 0
) -> tuple[tuple[PageView, ...], ...]:
    """Say what lies in every page of an allocation whose rows have this layout."""
    size = allocation.page_size

    def view(page: int, start: int) -> PageView:
        end = start + size
        num_tokens = min(end, allocation.num_tokens) - start
        kind: PageKind = "prefix" if end <= layout.prefix_len else "target"
        if page in shared:
            kind = "shared"
        return PageView(first_page + page, kind, num_tokens, size - num_tokens)

    return tuple(
        tuple(view(page, i * size) for i, page in enumerate(table))
        for table in allocation.page_tables
    )
