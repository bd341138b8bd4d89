"""The immutable record of which pages a request holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KVAllocation:
    """Pages of all rows of one request: made by the Scheduler, read by Workers, never changed."""

    request_id: str
    generation: int
    """Grows with every reservation, so that a stale allocation is told from a live one."""

    page_tables: tuple[tuple[int, ...], ...]
    """One table for each row that a rank has: page ids in token order, the same on every rank."""

    num_tokens: int
    """Key/value tokens of each row; the last page may have unused slots after them."""

    page_size: int

    num_cached_tokens: int = 0
    """Leading tokens of every row whose keys and values lie in its pages already: whole pages of
    the prefix, which nobody may write to."""

    num_shared_tokens: int = 0
    """Leading tokens that are the same in all these rows; the whole pages among them are the same
    pages in every table, and the first step computes them once where one of these is new. 0 where
    rows share nothing."""

    @property
    def num_pages(self) -> int:
        """Pages held, one in several tables counted once."""
        return len({page for table in self.page_tables for page in table})
