"""The one queue of all worker groups: which request runs next, in which group, with which pages.

The states of a request, and who moves it on:

    add_request      schedule            schedule            finish
    ───────────▶ waiting ────▶ admitted ────▶ running ────────────▶ gone
                  │   ▲           │ │            │ │
                  │   └───────────┘ │            │ └─ requeue: first in line again, pages back
                  │    close_group  │            │
                  │ abort           │ abort      │ abort: stays running; the worker must
                  ▼                 ▼            ▼ stop it, then comes finish
                 gone        gone, pages back

    waiting    holds nothing
    admitted   holds pages in the pool of a group, waits for its turn there
    running    the group writes its pages; nothing but `finish` and `requeue` takes them away

Requests are admitted in the order of arrival, with no overtaking: while the first one waits for
pages, a smaller one behind it waits, too. Otherwise a stream of small requests could take each page
as it comes free, and a big one would wait for ever. Nobody waits in vain, either: what could never
fit is refused on arrival, and the first in line fits as soon as those ahead of it are gone.

Where requests are scheduled step by step, a group runs all that it holds: `next_step` names the
next one in turn, and a new one joins behind all others. So each of k requests makes every k-th
step, however many steps the others have.

Prefixes: what a request computed is found by later ones from the moment it ends well, in the pool
of its group. A request whose pages were booked ahead looks again when its turn comes: the one
before it may have computed the same prefix. A group that is closed has lost what lay in its pages.

A request is admitted to the group that has the least to do. A group that turns idle takes the
oldest request that it can hold, also one that was admitted elsewhere: nobody waits behind a running
request while a group stands idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from kit.errors import EngineError, InvalidRequestError
from kit.kv.allocation import KVAllocation
from kit.kv.manager import KVCacheManager, LargestSize
from kit.kv.pool import PagePool
from kit.kv.prefix import PrefixKeys
from kit.tokenizer.layout import Layout


@dataclass(frozen=True)
class Scheduled:
    """A request whose turn has come."""

    request_id: str
    allocation: KVAllocation | None
    """None in dense_legacy, never None in paged_scheduler."""


@dataclass(frozen=True)
class Holding:
    """A request that holds pages now."""

    request_id: str
    group: int
    is_running: bool
    allocation: KVAllocation


@dataclass(frozen=True)
class GroupSnapshot:
    """One worker group and its pool at one moment."""

    is_open: bool
    """Whether it takes requests."""

    num_admitted: int
    """Admitted and not yet running."""

    running: tuple[str, ...]
    """Ids of the running requests, the next in turn first; one at most but for steps."""

    num_pages: int
    """Capacity of the pool; this and all that follow are 0 in dense_legacy."""

    num_pages_used: int
    num_pages_free: int
    num_pages_cached: int
    """Free pages that hold a prefix which can be found."""

    peak_pages_used: int
    num_pages_evicted: int
    """Cached pages that were handed out for something else so far."""


@dataclass(frozen=True)
class SchedulerSnapshot:
    """How full the queue and the pools are at one moment."""

    num_waiting: int
    groups: tuple[GroupSnapshot, ...]

    @property
    def num_admitted(self) -> int:
        return sum(group.num_admitted for group in self.groups)

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the running requests, in the order of their groups."""
        return tuple(name for group in self.groups for name in group.running)

    @property
    def num_pages(self) -> int:
        return sum(group.num_pages for group in self.groups)

    @property
    def num_pages_used(self) -> int:
        return sum(group.num_pages_used for group in self.groups)

    @property
    def num_pages_free(self) -> int:
        return sum(group.num_pages_free for group in self.groups)

    @property
    def num_pages_cached(self) -> int:
        return sum(group.num_pages_cached for group in self.groups)

    @property
    def num_pages_evicted(self) -> int:
        return sum(group.num_pages_evicted for group in self.groups)

    @property
    def peak_pages_used(self) -> int:
        """Most pages of each group, added up; the groups need not have had them at once."""
        return sum(group.peak_pages_used for group in self.groups)


@dataclass
class _Queued:
    num_rows: int
    num_tokens: int
    prefix: PrefixKeys | None
    group: int | None = None
    """Where it is admitted; None while it waits."""

    allocation: KVAllocation | None = None


@dataclass
class _Group:
    kv: KVCacheManager | None
    is_open: bool = True
    num_admitted: int = 0
    running: OrderedDict[str, _Queued] = field(default_factory=OrderedDict)
    """The next in turn first."""

    @property
    def num_held(self) -> int:
        return self.num_admitted + len(self.running)


class Scheduler:
    """The life of all requests of a deployment. Not locked: its owner is."""

    def __init__(
        self,
        pools: Sequence[KVCacheManager | None],
        max_num_seqs: int,
        *,
        by_steps: bool = False,
    ) -> None:
        """One pool for each group, of equal sizes.

        Without pools (None, dense_legacy) no pages are booked and nothing is refused for its size.
        `max_num_seqs` is how many requests a group may hold at once, those that run included: one,
        or with `by_steps` all of them, a step each in turn.
        """
        assert max_num_seqs > 0, "somebody must be allowed to run"
        self._groups = tuple(_Group(kv) for kv in pools)
        self._max_num_seqs = max_num_seqs
        self._max_running = max_num_seqs if by_steps else 1
        self._queue: OrderedDict[str, _Queued] = OrderedDict()
        """Waiting or admitted, the oldest first."""

    def add_request(
        self,
        request_id: str,
        layout: Layout,
        num_rows: int,
        *,
        prefix: PrefixKeys | None = None,
        largest_size: LargestSize | None = None,
    ) -> None:
        """Put a request at the end of the queue, or refuse it now if it can never run.

        prefix: what it may share, see KVCacheManager.reserve. Raises InvalidRequestError (id in
        use, too many rows) or CapacityError, whose message takes the largest size that fits from
        `largest_size`.
        """
        if request_id in self._queue or self._group_of(request_id) is not None:
            raise InvalidRequestError(
                f"request_id: got {request_id!r}, which is queued or running; use another id or "
                "leave it out",
                param="request_id",
            )
        kv = self._groups[0].kv
        if kv is not None:
            kv.check_fits(num_rows, layout.kv_len, request_id=request_id, largest_size=largest_size)
        self._queue[request_id] = _Queued(num_rows, layout.kv_len, prefix)

    def admit(self) -> None:
        """Book pages for those who may hold some now; call it after each change."""
        for request_id, queued in self._queue.items():
            if queued.group is not None:
                continue
            open_groups = [i for i, group in enumerate(self._groups) if group.is_open]
            by_load = sorted(open_groups, key=lambda i: self._groups[i].num_held)
            if not any(self._book(request_id, queued, index) for index in by_load):
                return

    def schedule(self, group: int = 0) -> Scheduled | None:
        """Begin the next request in a group; None while its places are taken, or none is for it.

        Books pages as `admit` does.
        """
        self.admit()
        own = self._groups[group]
        if not own.is_open or len(own.running) == self._max_running:
            return None
        for request_id, queued in self._queue.items():
            if queued.group == group or self._book(request_id, queued, group):
                if own.kv is not None and queued.allocation is not None:
                    queued.allocation = own.kv.look_up_again(queued.allocation)
                del self._queue[request_id]
                own.num_admitted -= 1
                own.running[request_id] = queued
                self.admit()
                return Scheduled(request_id, queued.allocation)
        assert not self._queue or own.num_held, "the first in line fits an empty pool"
        return None

    def next_step(self, group: int = 0) -> str | None:
        """Return which running request of a group makes the next step; None if none runs."""
        running = self._groups[group].running
        request_id = next(iter(running), None)
        if request_id is not None:
            running.move_to_end(request_id)
        return request_id

    def finish(self, request_id: str, *, is_good: bool = False) -> None:
        """Release the pages of a running request, however it ended.

        is_good: it gave its image; later requests may find its prefix. Of any other nobody knows
        what lies in its pages. The worker is done with them, and has scrubbed them if they held
        non-finite values. Raises EngineError, with nothing changed, for any other request.
        """
        self._end(request_id, is_good=is_good)

    def requeue(self, request_id: str) -> None:
        """Put a running request first in line again; its pages go back. Raises as `finish`."""
        queued = self._end(request_id)
        self._queue[request_id] = queued
        self._queue.move_to_end(request_id, last=False)

    def abort(self, request_id: str) -> bool:
        """Forget a request at once, unless it runs; True when nothing of it is left here.

        False means that it is running: tell the worker to stop it, and call `finish` when it has.
        An id that is not known gives True, because a request may end while its caller gives up.
        """
        if self._group_of(request_id) is not None:
            return False
        queued = self._queue.pop(request_id, None)
        if queued is not None:
            self._unbook(queued)
        return True

    def close_group(self, group: int) -> None:
        """Give a group no more requests; those admitted to it wait again, each in its place.

        Its prefixes are forgotten, and those that still run there leave none.
        """
        closed = self._groups[group]
        closed.is_open = False
        if closed.kv is not None:
            closed.kv.forget_prefixes()
        for queued in self._queue.values():
            if queued.group == group:
                self._unbook(queued)

    def open_group(self, group: int) -> None:
        """Give a group requests again."""
        self._groups[group].is_open = True

    def snapshot(self) -> SchedulerSnapshot:
        """Return the numbers that metrics show."""
        num_waiting = sum(queued.group is None for queued in self._queue.values())
        return SchedulerSnapshot(num_waiting, tuple(map(_snapshot, self._groups)))

    def holdings(self) -> tuple[Holding, ...]:
        """Return who holds which pages: those that run, then those admitted, the oldest first."""
        running = [item for group in self._groups for item in group.running.items()]
        admitted = [(name, queued) for name, queued in self._queue.items()]
        return tuple(
            Holding(name, queued.group, at < len(running), queued.allocation)
            for at, (name, queued) in enumerate([*running, *admitted])
            if queued.group is not None and queued.allocation is not None
        )

    def _group_of(self, request_id: str) -> _Group | None:
        """Return the group that runs a request."""
        for group in self._groups:
            if request_id in group.running:
                return group
        return None

    def _end(self, request_id: str, *, is_good: bool = False) -> _Queued:
        group = self._group_of(request_id)
        if group is None:
            running = ", ".join(name for g in self._groups for name in g.running)
            raise EngineError(
                f"finish of request {request_id}: {running or 'no request'} is running; "
                "finish only what schedule() returned, once"
            )
        queued = group.running.pop(request_id)
        group.num_admitted += 1
        self._unbook(queued, publish=is_good and group.is_open)
        return queued

    def _book(self, request_id: str, queued: _Queued, group: int) -> bool:
        """Admit a request to a group, away from where it is; False, and no change, if full."""
        chosen = self._groups[group]
        if chosen.num_held >= self._max_num_seqs:
            return False
        allocation = None
        if chosen.kv is not None:
            allocation = chosen.kv.reserve(
                request_id, queued.num_rows, queued.num_tokens, queued.prefix
            )
            if allocation is None:
                return False
        self._unbook(queued)
        queued.group, queued.allocation = group, allocation
        chosen.num_admitted += 1
        return True

    def _unbook(self, queued: _Queued, *, publish: bool = False) -> None:
        """Take a request from its group, if it has one; its pages go back."""
        if queued.group is None:
            return
        group = self._groups[queued.group]
        if group.kv is not None and queued.allocation is not None:
            group.kv.release(queued.allocation, publish=publish)
        group.num_admitted -= 1
        queued.group = queued.allocation = None


def _snapshot(group: _Group) -> GroupSnapshot:
    pool = group.kv.pool if group.kv is not None else PagePool(0)
    return GroupSnapshot(
        is_open=group.is_open,
        num_admitted=group.num_admitted,
        running=tuple(group.running),
        num_pages=pool.num_pages,
        num_pages_used=pool.num_used,
        num_pages_free=pool.num_free,
        num_pages_cached=pool.num_cached,
        peak_pages_used=pool.peak_used,
        num_pages_evicted=pool.num_evicted,
    )
