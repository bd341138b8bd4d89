"""Books the pages of whole requests: all rows or none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from kit.errors import CapacityError, InvalidRequestError, KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.geometry import KVGeometry
from kit.kv.pool import PagePool
from kit.modelspec import footprint

LargestSize = Callable[[int], str | None]
"""Names the largest image (as 320x192) whose row has at most so many key/value tokens.

None when no image is that small. The manager counts tokens only; who builds the rows knows sizes.
"""


class KVCacheManager:
    """Owns the page pool; a request holds at most one allocation at a time. One thread only."""

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
        self._live: dict[str, KVAllocation] = {}

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

    def reserve(self, request_id: str, num_rows: int, num_tokens: int) -> KVAllocation | None:
        """Book pages for all rows of a request; None, and nothing booked, when they must wait.

        Raises as `check_fits` does, so that None always means "later", and KVCacheError when the
        request holds pages already.
        """
        assert num_rows > 0, "a request has at least one row"
        assert num_tokens > 0, "a row has at least one token"
        if request_id in self._live:
            raise KVCacheError(
                f"request {request_id} holds pages already (generation "
                f"{self._live[request_id].generation}); release them before it reserves again"
            )
        self.check_fits(num_rows, num_tokens, request_id=request_id)
        pages_per_row = self.geometry.num_pages(num_tokens)
        # One call for all rows: the pool gives everything or nothing, so no half-booked request
        # ever exists and there is nothing to roll back.
        pages = self.pool.allocate(self.own_rows(num_rows) * pages_per_row)
        if pages is None:
            return None
        self._generation += 1
        allocation = KVAllocation(
            request_id=request_id,
            generation=self._generation,
            page_tables=tuple(
                pages[at : at + pages_per_row] for at in range(0, len(pages), pages_per_row)
            ),
            num_tokens=num_tokens,
            page_size=self.geometry.page_size,
        )
        self._live[request_id] = allocation
        return allocation

    def release(self, allocation: KVAllocation) -> None:
        """Give the pages of a live allocation back.

        Raises KVCacheError, and frees nothing, when the allocation is unknown, released already,
        of an older generation, or not as it was handed out.
        """
        live = self._live.get(allocation.request_id)
        if live != allocation:
            raise KVCacheError(_mismatch(allocation, live))
        self.pool.free(chain.from_iterable(allocation.page_tables))
        del self._live[allocation.request_id]

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
                remedy = f"no image size fits beside this prompt; {remedy}"
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
