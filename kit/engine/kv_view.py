"""Who holds which pages, and what lies in them."""

from __future__ import annotations

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
end of the prefix; shared: prefix of several requests. Tail slots are no page of their own."""


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
    first_page: int = 0,
) -> RequestView:
    """Say what a request holds; `last` is its last step, None before the first.

    first_page: number of the first page of its group.
    """
    return RequestView(
        request_id=holding.request_id,
        group=holding.group,
        state="running" if holding.is_running else "admitted",
        generation=holding.allocation.generation,
        prefix_tokens=layout.prefix_len,
        target_tokens=layout.target_len,
        step=last.step if last else 0,
        num_steps=num_steps,
        tokens_written=last.tokens_written if last else 0,
        rows=view_rows(holding.allocation, layout, first_page),
    )


def view_rows(
    allocation: KVAllocation, layout: Layout, first_page: int = 0
) -> tuple[tuple[PageView, ...], ...]:
    """Say what lies in every page of an allocation whose rows have this layout."""
    size = allocation.page_size

    def view(page: int, start: int) -> PageView:
        end = start + size
        num_tokens = min(end, allocation.num_tokens) - start
        kind: PageKind = "prefix" if end <= layout.prefix_len else "target"
        return PageView(first_page + page, kind, num_tokens, size - num_tokens)

    return tuple(
        tuple(view(page, i * size) for i, page in enumerate(table))
        for table in allocation.page_tables
    )
