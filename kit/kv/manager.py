"""Books the pages of whole requests: all rows or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from kit.errors import CapacityError, InvalidRequestError, KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.pool import PagePool
from kit.kv.prefix import PrefixKeys
from kit.modelspec import footprint

LargestSize = Callable[[int], str | None]
"""Names the largest image (as 320x192) whose row has at most so many key/value tokens.

None when no image is that small. The manager counts tokens only; who builds the rows knows sizes.
"""


@dataclass(frozen=True)
class _Live:
    """What a request holds, and what it asked for."""

    allocation: KVAllocation
    num_rows: int
    prefix: PrefixKeys | None


class KVCacheManager:
    """Owns the page pool; a request holds at most one allocation at a time. One thread only.

    Pages of equal prefixes are shared between the rows of a request, and found again by later
    requests until somebody needs the room. Only whole pages of a prefix are: a page that holds a
    target token is written in every step, and has one owner.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_pages: int,
        max_rows_per_request: int,
        *,
        row_ranks: int = 1,
    ) -> None:
        """Pages are those of one rank; `row_ranks` ranks share the rows of a request.

        Each has pages for its own rows, of the same numbers in its own pool. Row limits are for a
        request, on all ranks together.
        """
        assert max_rows_per_request > 0, "a request has at least one row"
        self.geometry, self.row_ranks = geometry, row_ranks
        self.max_rows_per_request = max_rows_per_request
        self.pool = PagePool(num_pages)
        """For reading its counters; pages come and go through the manager only."""

        self._generation = 0
        self._live: dict[str, _Live] = {}

    def empty_copy(self) -> KVCacheManager:
        """Return the manager of another pool of this size."""
        return KVCacheManager(
            self.geometry, self.pool.num_pages, self.max_rows_per_request, row_ranks=self.row_ranks
        )

    def own_rows(self, num_rows: int) -> int:
        """Return how many rows of a request each rank has: a single row is on every rank."""
        return footprint.own_rows(num_rows, self.row_ranks)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool on one rank."""
        return self.geometry.pool_bytes(self.pool.num_pages)

    def check_fits(
        self,
        num_rows: int,
        num_tokens: int,
        *,
        request_id: str | None = None,
        largest_size: LargestSize | None = None,
    ) -> None:
        """Refuse what can never be reserved: rows of `num_tokens` tokens, in an empty pool.

        Pages are counted as if the rows shared none. Whether a request can run must not depend on
        what others have left in the pool; and Ascend's fused attention counts a shared page once
        for each row, and refuses a pool with fewer: what passes here is a legal call there,
        whatever it comes to share.

        Raises InvalidRequestError for more rows than the deployment allows, and CapacityError for
        more pages than the pool has. `request_id` and `largest_size` serve the message only.
        """
        if num_rows > self.max_rows_per_request:
            raise InvalidRequestError(
                f"{_subject(request_id)} needs {num_rows} rows (guidance_scale above 1), "
                f"diffusion_kv_max_rows_per_request is {self.max_rows_per_request}; set "
                "guidance_scale to at most 1 or raise diffusion_kv_max_rows_per_request to "
                f"{num_rows}",
                param="guidance_scale",
            )
        num_pages = self.own_rows(num_rows) * self.geometry.num_pages(num_tokens)
        if num_pages > self.pool.num_pages:
            raise self._capacity_error(num_rows, num_pages, request_id, largest_size)

    def largest_num_tokens(self, num_rows: int) -> int:
        """Return the most tokens a row can have so that `num_rows` rows fit an empty pool."""
        return self.pool.num_pages // self.own_rows(num_rows) * self.geometry.page_size

    def reserve(
        self, request_id: str, num_rows: int, num_tokens: int, prefix: PrefixKeys | None = None
    ) -> KVAllocation | None:
        """Book pages for all rows of a request; None, and nothing booked, when they must wait.

        prefix: what its rows share, and what may lie in the pool already; None shares nothing.
        Raises as `check_fits` does, so that None always means "later", and KVCacheError when the
        request holds pages already.
        """
        assert num_rows > 0, "a request has at least one row"
        assert num_tokens > 0, "a row has at least one token"
        if (live := self._live.get(request_id)) is not None:
            raise KVCacheError(
                f"request {request_id} holds pages already (generation "
                f"{live.allocation.generation}); release them before it reserves again"
            )
        self.check_fits(num_rows, num_tokens, request_id=request_id)
        num_tables = self.own_rows(num_rows)
        num_shared = 0 if prefix is None else prefix.num_shared_tokens
        cached = ((),) * num_tables if prefix is None else self._look_up(prefix)
        tables = self._take(cached, num_shared, self.geometry.num_pages(num_tokens))
        if tables is None:
            return None
        self._generation += 1
        allocation = KVAllocation(
            request_id=request_id,
            generation=self._generation,
            page_tables=tables,
            num_tokens=num_tokens,
            page_size=self.geometry.page_size,
            num_cached_tokens=len(cached[0]) * self.geometry.page_size,
            num_shared_tokens=num_shared,
        )
        self._live[request_id] = _Live(allocation, num_rows, prefix)
        return allocation

    def look_up_again(self, allocation: KVAllocation) -> KVAllocation:
        """Return what a request holds after another look for its prefix.

        It is another allocation if more was found: as many pages, fresh ones given for those.
        Nothing may have been written yet. Raises as `release`.
        """
        live = self._check_live(allocation)
        if live.prefix is None:
            return allocation
        found = len(self._look_up(live.prefix)[0]) * self.geometry.page_size
        if found <= allocation.num_cached_tokens:
            return allocation
        self.release(allocation)
        again = self.reserve(
            allocation.request_id, live.num_rows, allocation.num_tokens, live.prefix
        )
        assert again is not None, "it needs no more pages than it gave back"
        return again

    def release(self, allocation: KVAllocation, *, publish: bool = False) -> None:
        """Give the pages of a live allocation back.

        publish: all its prefix was computed and is sound, so later requests may find it. A page
        whose key is known already is given back like any other.
        Raises KVCacheError, and frees nothing, when the allocation is unknown, released already,
        of an older generation, or not as it was handed out.
        """
        live, tables = self._check_live(allocation), allocation.page_tables
        foreign: list[tuple[bytes, ...]] = []
        if publish and live.prefix is not None:
            num_cached = allocation.num_cached_tokens // self.geometry.page_size
            for keys, table in zip(live.prefix.tables, tables, strict=True):
                fresh = slice(num_cached, len(keys))
                if self.pool.publish(keys[fresh], table[fresh]):
                    foreign.append(keys)
        self.pool.free(dict.fromkeys(chain.from_iterable(tables)))
        # Pages of others between its own: in the order of the chain, like its own. The first row
        # comes last, with what the rows have in common behind what they build on it.
        for keys in reversed(foreign):
            self.pool.touch(keys)
        del self._live[allocation.request_id]

    def forget_prefixes(self) -> None:
        """Find no prefix again that was published so far: what lay in the pages is gone."""
        self.pool.forget()

    def _look_up(self, prefix: PrefixKeys) -> tuple[tuple[int, ...], ...]:
        """Return the leading pages of each table that are known, as many of each.

        Rows are computed together from one token on. So a row that has more leaves them: it will
        write these tokens, and what others may read is never written.
        """
        found = [self.pool.find(keys) for keys in prefix.tables]
        num_pages = min(map(len, found))
        return tuple(pages[:num_pages] for pages in found)

    def _take(
        self, cached: tuple[tuple[int, ...], ...], num_shared_tokens: int, pages_per_row: int
    ) -> tuple[tuple[int, ...], ...] | None:
        """Return one table for each row; None, and nothing taken, when too few pages are free.

        [0, c)              cached; the same pages where rows have the same keys
        [c, s)              fresh, one page in every table
        [max(c, s), end)    fresh, of this row alone
        """
        num_cached = len(cached[0])
        num_common = max(0, num_shared_tokens // self.geometry.page_size - num_cached)
        num_own = pages_per_row - num_cached - num_common
        found = dict.fromkeys(chain.from_iterable(cached))
        num_fresh = num_common + len(cached) * num_own
        # Found pages that are free are no room for the fresh ones.
        if num_fresh > self.pool.num_free - sum(map(self.pool.is_cached, found)):
            return None
        self.pool.share(found)
        # One call for all rows: the pool gives everything or nothing, so no half-booked request
        # ever exists and there is nothing to roll back.
        fresh = self.pool.allocate(num_fresh)
        assert fresh is not None, "they were counted"
        common, own = fresh[:num_common], fresh[num_common:]
        return tuple(
            (*pages, *common, *own[row * num_own : (row + 1) * num_own])
            for row, pages in enumerate(cached)
        )

    def _check_live(self, allocation: KVAllocation) -> _Live:
        live = self._live.get(allocation.request_id)
        if live is None or live.allocation != allocation:
            raise KVCacheError(_mismatch(allocation, None if live is None else live.allocation))
        return live

    def _capacity_error(
        self,
        num_rows: int,
        num_pages: int,
        request_id: str | None,
        largest_size: LargestSize | None,
    ) -> CapacityError:
        needed = self.geometry.pool_bytes(num_pages)
        given = self.pool_bytes
        remedy = f"raise kv_cache_memory_bytes to {needed}"
        if largest_size is not None:
            size = largest_size(self.largest_num_tokens(num_rows))
            if size is None:
                remedy = f"no image size fits beside the rest of the row; {remedy}"
            else:
                remedy = f"largest size that fits is {size}; use it, or {remedy}"
        else:
            remedy = f"use a smaller size or {remedy}"
        return CapacityError(
            f"{_subject(request_id)} needs {num_pages} KV pages ({_bytes_text(needed)}), the pool "
            f"has {self.pool.num_pages} ({_bytes_text(given)}); {remedy}",
            needed_bytes=needed,
            given_bytes=given,
            param="size",
        )


def _subject(request_id: str | None) -> str:
    return "the request" if request_id is None else f"request {request_id}"


def _bytes_text(num_bytes: int) -> str:
    for unit, unit_bytes in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= unit_bytes:
            return f"{num_bytes} bytes, {num_bytes / unit_bytes:.1f} {unit}"
    return f"{num_bytes} bytes"


def _mismatch(allocation: KVAllocation, live: KVAllocation | None) -> str:
    got = f"release of request {allocation.request_id}, generation {allocation.generation}"
    if live is None:
        return f"{got}: it holds no pages; release each allocation once"
    if live.generation != allocation.generation:
        return f"{got}: its live generation is {live.generation}; release the live one"
    return f"{got}: its pages or lengths are not those reserved; release it as handed out"
