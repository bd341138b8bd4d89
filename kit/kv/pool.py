"""A fixed number of page ids, each in use or free; free ones may still hold a prefix."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kit.errors import KVCacheError


class PagePool:
    """Counts who uses which page, and remembers by their keys what lies in some of them.

        blank   free, nothing is known of what lies in it
        in use  by as many requests as it was taken and shared for; it may have a key
        cached  free, and still found by its key

    Order: a new pool hands out 0, 1, 2, ...; later the blank pages freed last go out first, in the
    order in which they were allocated. So a pool that is used in the same way twice hands out the
    same pages, and a repeated request touches the memory it touched before. Cached pages go out
    when no page is blank, those first that were not used for the longest time. Pages need not be
    neighbours: a request fits exactly when enough pages are free, however scattered they are.

    Work grows with the pages asked for, never with the size of the pool. One thread only.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 0:
            raise KVCacheError(f"a pool cannot have {num_pages} pages; give 0 or more")
        self.num_pages = num_pages
        self.peak_used = 0
        """Most pages in use at one moment so far."""

        self.num_evicted = 0
        """Cached pages that were handed out for something else so far."""

        # The next page to go out is the last one. Four bytes a page: a list would keep an object
        # for each id, and a large pool in use would miss the processor's cache on every page.
        self._blank = array("i", range(num_pages - 1, -1, -1))
        self._num_users = array("i", [0]) * num_pages
        self._keys: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        """The least recently used first."""

    @property
    def num_free(self) -> int:
        """Pages that can be handed out: blank and cached."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_pages - self.num_free

    @property
    def num_cached(self) -> int:
        """Free pages that are still found by their keys."""
        return len(self._cached)

    def allocate(self, num_pages: int) -> tuple[int, ...] | None:
        """Take `num_pages` pages; None, and nothing taken, when fewer are free now."""
        if num_pages < 0:
            raise KVCacheError(f"cannot allocate {num_pages} pages; ask for 0 or more")
        if num_pages > self.num_free:
            return None
        num_left = max(0, len(self._blank) - num_pages)
        pages = tuple(reversed(self._blank[num_left:]))
        del self._blank[num_left:]
        if len(pages) < num_pages:
            pages += tuple(self._evict() for _ in range(num_pages - len(pages)))
        num_users = self._num_users
        for page in pages:
            num_users[page] = 1
        self.peak_used = max(self.peak_used, self.num_used)
        return pages

    def find(self, keys: Sequence[bytes]) -> tuple[int, ...]:
        """Return the pages of the leading keys that are known, one after another."""
        pages = []
        for key in keys:
            page = self._pages.get(key)
            if page is None:
                break
            pages.append(page)
        return tuple(pages)

    def is_cached(self, page: int) -> bool:
        """Whether a page is free, and found by its key."""
        return page in self._cached

    def share(self, pages: Iterable[int]) -> None:
        """Use pages that were found, each as one more user."""
        num_users, cached = self._num_users, self._cached
        for page in pages:
            assert page in self._keys, "only a page with a key can be shared"
            num_users[page] += 1
            cached.pop(page, None)
        self.peak_used = max(self.peak_used, self.num_used)

    def free(self, pages: Iterable[int]) -> None:
        """Give `pages` back for one user, all or none.

        Of several rows the pages in token order, a page of both rows with the first: then those
        that lie deeper in a prefix are handed out for something else before those they build on.
        Raises KVCacheError when a page is foreign to the pool, free already, or named twice.
        """
        returned = tuple(pages)
        self._check_in_use(returned)
        # Local names: a request has many pages, and this loop is most of its release.
        num_users, keys, blank = self._num_users, self._keys, self._blank
        for page in reversed(returned):
            num_left = num_users[page] - 1
            num_users[page] = num_left
            if num_left == 0:
                if page in keys:
                    self._cached[page] = None
                else:
                    blank.append(page)

    def publish(self, keys: Sequence[bytes], pages: Sequence[int]) -> bool:
        """Let pages in use be found by `keys`; a key that is known keeps its page.

        Returns whether some key belongs to another page.
        """
        known = self._pages
        for key, page in zip(keys, pages, strict=True):
            if known.setdefault(key, page) == page:
                assert self._num_users[page], "what lies in a free page may be gone"
                self._keys[page] = key
        return any(known[key] != page for key, page in zip(keys, pages, strict=True))

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count the cached pages of a chain as used now, so that its deepest page goes first."""
        for key in reversed(keys):
            page = self._pages.get(key)
            if page is not None and page in self._cached:
                self._cached.move_to_end(page)

    def forget(self) -> None:
        """Forget all keys: what lies in the pages is gone."""
        self._blank.extend(self._cached)
        self._cached.clear()
        self._keys.clear()
        self._pages.clear()

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        del self._pages[self._keys.pop(page)]
        self.num_evicted += 1
        return page

    def _check_in_use(self, pages: tuple[int, ...]) -> None:
        num_pages, num_users = self.num_pages, self._num_users
        for page in pages:
            # Without the lower limit, -1 would be read as the last page.
            if not 0 <= page < num_pages:
                raise KVCacheError(
                    f"page {page} was returned to a pool of {num_pages} pages, which has no "
                    "such page; free each page in the pool that handed it out"
                )
            if not num_users[page]:
                raise KVCacheError(
                    f"page {page} was returned while it is free; free each allocation once"
                )
        if len(set(pages)) != len(pages):
            twice = next(page for page in pages if pages.count(page) > 1)
            raise KVCacheError(f"page {twice} was returned twice in one call; name each page once")
