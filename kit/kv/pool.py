"""A fixed number of page ids, each free or in use."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kit.errors import KVCacheError


class PagePool:
    """Hands out page ids and takes them back; any free page is as good as another.

    Order: a new pool hands out 0, 1, 2, ...; later the pages freed last go out first, in the
    order in which they were allocated. So a pool that is used in the same way twice hands out the
    same pages, and a repeated request touches the memory it touched before. Pages need not be
    neighbours: a request fits exactly when enough pages are free, however scattered they are.

    Work grows with the pages asked for, never with the size of the pool. One thread only.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 0:
            raise KVCacheError(f"a pool cannot have {num_pages} pages; give 0 or more")
        self.num_pages = num_pages
        self.peak_used = 0
        """Most pages in use at one moment so far."""

        # The next page to go out is the last one. Four bytes a page: a list would keep an object
        # for each id, and a large pool in use would miss the processor's cache on every page.
        self._free = array("i", range(num_pages - 1, -1, -1))
        # One byte a page. A set of the ids in use would outgrow the cache in the same way.
        self._in_use = bytearray(num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    def allocate(self, num_pages: int) -> tuple[int, ...] | None:
        """Take `num_pages` pages; None, and nothing taken, when fewer are free now."""
        if num_pages < 0:
            raise KVCacheError(f"cannot allocate {num_pages} pages; ask for 0 or more")
        num_left = len(self._free) - num_pages
        if num_left < 0:
            return None
        pages = tuple(reversed(self._free[num_left:]))
        del self._free[num_left:]
        for page in pages:
            self._in_use[page] = 1
        self.peak_used = max(self.peak_used, self.num_used)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give `pages` back, all or none.

        Raises KVCacheError when a page is foreign to the pool, free already, or named twice.
        """
        returned = tuple(pages)
        self._check_in_use(returned)
        for page in returned:
            self._in_use[page] = 0
        self._free.extend(reversed(returned))

    def _check_in_use(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            # Without the lower limit, -1 would be read as the last page.
            if not 0 <= page < self.num_pages:
                raise KVCacheError(
                    f"page {page} was returned to a pool of {self.num_pages} pages, which has no "
                    "such page; free each page in the pool that handed it out"
                )
            if not self._in_use[page]:
                raise KVCacheError(
                    f"page {page} was returned while it is free; free each allocation once"
                )
        if len(set(pages)) != len(pages):
            twice = next(page for page in pages if pages.count(page) > 1)
            raise KVCacheError(f"page {twice} was returned twice in one call; name each page once")
