"""The queue of a worker group: which request runs next, with which pages.

The states of a request, and who moves it on:

    add_request      schedule            schedule            finish
    ───────────▶ waiting ────▶ admitted ────▶ running ────────────▶ gone
                    │             │              │
                    │ abort       │ abort        │ abort: stays running; the worker must
                    ▼             ▼              ▼ stop it, then comes finish
                   gone    gone, pages back

    waiting    holds nothing
    admitted   holds its pages, waits for its turn
    running    the worker writes its pages; nothing but `finish` takes them away

Requests are admitted and run in the order of arrival, with no overtaking: while the first one waits
for pages, a smaller one behind it waits, too. Otherwise a stream of small requests could take each
page as it comes free, and a big one would wait for ever. Nobody waits in vain, either: what could
never fit is refused on arrival, and the first in line fits as soon as those ahead of it are gone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kit.errors import EngineError, InvalidRequestError
from kit.kv.allocation import KVAllocation
from kit.kv.manager import KVCacheManager, LargestSize
from kit.kv.pool import PagePool
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
    is_running: bool
    allocation: KVAllocation


@dataclass(frozen=True)
class SchedulerSnapshot:
    """How full the queue and the pool are at one moment."""

    num_waiting: int
    num_admitted: int
    """Admitted and not yet running."""

    running: str | None
    """Id of the running request."""

    num_holding: int
    """Requests that hold pages, the running one included; 0 in dense_legacy."""

    num_pages: int
    """Capacity of the pool; this and the next three are 0 in dense_legacy."""

    num_pages_used: int
    num_pages_free: int
    peak_pages_used: int


@dataclass(frozen=True)
class _Demand:
    num_rows: int
    num_tokens: int


class Scheduler:
    """The life of all requests of one worker group. One thread only: the engine's."""

    def __init__(self, kv: KVCacheManager | None, max_num_seqs: int) -> None:
        """Without `kv` (dense_legacy) no pages are booked and nothing is refused for its size.

        `max_num_seqs` is how many requests may be admitted at once, the running one included.
        """
        assert max_num_seqs > 0, "somebody must be allowed to run"
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._waiting: OrderedDict[str, _Demand] = OrderedDict()
        self._admitted: OrderedDict[str, KVAllocation | None] = OrderedDict()
        self._running: Scheduled | None = None

    def add_request(
        self,
        request_id: str,
        layout: Layout,
        num_rows: int,
        *,
        largest_size: LargestSize | None = None,
    ) -> None:
        """Put a request at the end of the queue, or refuse it now if it can never run.

        Raises InvalidRequestError (id in use, too many rows) or CapacityError, whose message takes
        the largest size that fits from `largest_size`.
        """
        if self._is_known(request_id):
            raise InvalidRequestError(
                f"request_id: got {request_id!r}, which is queued or running; use another id or "
                "leave it out",
                param="request_id",
            )
        if self._kv is not None:
            self._kv.check_fits(
                num_rows, layout.kv_len, request_id=request_id, largest_size=largest_size
            )
        self._waiting[request_id] = _Demand(num_rows, layout.kv_len)

    def schedule(self) -> Scheduled | None:
        """Admit what may be admitted, then start the next request if none runs.

        Returns the request that the worker must run now; None while one runs or none is queued.
        Call it after each change: it also books the pages of the next requests while one runs.
        """
        self._admit()
        if self._running is not None or not self._admitted:
            assert self._running or not self._waiting, "the first in line fits an empty pool"
            return None
        self._running = Scheduled(*self._admitted.popitem(last=False))
        return self._running

    def finish(self, request_id: str) -> None:
        """Release the pages of the running request, however it ended.

        The worker is done with the pages, and has scrubbed them if they held non-finite values.
        Raises EngineError, with nothing changed, for any other request.
        """
        if self._running is None or self._running.request_id != request_id:
            raise EngineError(
                f"finish of request {request_id}: "
                f"{self._running.request_id if self._running else 'no request'} is running; "
                "finish only what schedule() returned, once"
            )
        self._release(self._running.allocation)
        self._running = None

    def abort(self, request_id: str) -> bool:
        """Forget a request at once, unless it runs; True when nothing of it is left here.

        False means that it is running: tell the worker to stop it, and call `finish` when it has.
        An id that is not known gives True, because a request may end while its caller gives up.
        """
        if self._running is not None and self._running.request_id == request_id:
            return False
        if request_id in self._admitted:
            self._release(self._admitted.pop(request_id))
        self._waiting.pop(request_id, None)
        return True

    def snapshot(self) -> SchedulerSnapshot:
        """Return the numbers that metrics show."""
        pool = self._kv.pool if self._kv is not None else PagePool(0)
        return SchedulerSnapshot(
            num_waiting=len(self._waiting),
            num_admitted=len(self._admitted),
            running=self._running.request_id if self._running else None,
            num_holding=self._num_admitted_or_running if self._kv is not None else 0,
            num_pages=pool.num_pages,
            num_pages_used=pool.num_used,
            num_pages_free=pool.num_free,
            peak_pages_used=pool.peak_used,
        )

    def holdings(self) -> tuple[Holding, ...]:
        """Return who holds which pages: the running request, then those admitted, in order."""
        running = self._running
        held = [] if running is None else [(running.request_id, True, running.allocation)]
        held += [(name, False, allocation) for name, allocation in self._admitted.items()]
        return tuple(
            Holding(request_id, is_running, allocation)
            for request_id, is_running, allocation in held
            if allocation is not None
        )

    @property
    def _num_admitted_or_running(self) -> int:
        return len(self._admitted) + (self._running is not None)

    def _is_known(self, request_id: str) -> bool:
        return (
            request_id in self._waiting
            or request_id in self._admitted
            or (self._running is not None and self._running.request_id == request_id)
        )

    def _admit(self) -> None:
        while self._waiting and self._num_admitted_or_running < self._max_num_seqs:
            request_id, demand = next(iter(self._waiting.items()))
            allocation = None
            if self._kv is not None:
                allocation = self._kv.reserve(request_id, demand.num_rows, demand.num_tokens)
                if allocation is None:
                    return
            del self._waiting[request_id]
            self._admitted[request_id] = allocation

    def _release(self, allocation: KVAllocation | None) -> None:
        if self._kv is not None and allocation is not None:
            self._kv.release(allocation)
