"""Keeps watching one server: whether it serves, what runs there, who holds which pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from kit.demo.answers import Holder, Info, Pool
from kit.demo.children import Child
from kit.demo.client import AnswerError, ServerClient, UnreachableError
from kit.telemetry.log import get_logger

_PROBE_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 0.5
_INTEREST_S = 5.0
"""The pool is watched for so long after somebody looked: a stream costs the server a little."""

_NUM_REMEMBERED = 8

StateKind = Literal["unknown", "down", "starting", "refused", "ready", "busy", "full"]

logger = get_logger("demo")


@dataclass(frozen=True)
class ServerState:
    """What one look at a server told."""

    kind: StateKind
    detail: str = ""
    num_queued: int = 0


class ServerFeed:
    """The last known state of one server; `run` keeps it fresh, on one event loop."""

    def __init__(self, name: str, client: ServerClient, child: Child | None = None) -> None:
        self.name, self.client = name, client
        self.child = child
        """The server's process, where the demo has started it."""

        self.label = name
        """What people read: the mode of keys and values, once known."""

        self.state = ServerState("unknown")
        self.info: Info | None = None
        self.pool: Pool | None = None
        self.written: OrderedDict[str, dict[int, int]] = OrderedDict()
        """For each of the last requests seen: tokens written, by step."""

        self.last_holder: Holder | None = None
        """The last request seen to hold pages: its prefix and rows say what the next one needs."""

        self._looked = -_INTEREST_S

    @property
    def answers(self) -> bool:
        """Whether a request sent now would reach it, as far as known."""
        return self.state.kind != "down"

    def look(self) -> Pool | None:
        """Return the pool as last seen, None when not known now, and keep watching it."""
        self._looked = time.monotonic()
        return self.pool

    async def run(self) -> None:
        """Watch until cancelled."""
        await asyncio.gather(self._watch_state(), self._watch_pool())

    async def _watch_state(self) -> None:
        while True:
            state = await self._probe()
            if state.kind != self.state.kind:
                logger.info("%s at %s: %s", self.name, self.client.url, state.kind)
            self.state = state
            await asyncio.sleep(_PROBE_INTERVAL_S)

    async def _probe(self) -> ServerState:
        try:
            ready = await self.client.ready()
            if ready.reason is not None:
                # What starts now may be another deployment than before.
                self.info = None
                kind: StateKind = "starting" if ready.reason.startswith("loading") else "refused"
                return ServerState(kind, ready.reason)
            if self.info is None:
                self.info = await self.client.info()
                self.label = self.info.mode
        except UnreachableError as error:
            self.info = None
            return ServerState("down", str(error))
        except AnswerError as error:
            return ServerState("refused", error.message)
        if ready.num_queued >= self.info.limits["max_queued_requests"]:
            return ServerState("full", num_queued=ready.num_queued)
        if ready.num_queued or ready.num_running:
            return ServerState("busy", num_queued=ready.num_queued)
        return ServerState("ready")

    async def _watch_pool(self) -> None:
        while True:
            if self._is_watched():
                # The state's own probe says in words what is wrong.
                with contextlib.suppress(UnreachableError, AnswerError):
                    async with contextlib.aclosing(self.client.pools()) as pools:
                        async for pool in pools:
                            self._remember(pool)
                            if not self._is_watched():
                                break
                self.pool = None
            await asyncio.sleep(_RETRY_INTERVAL_S if self._is_watched() else 0.1)

    def _is_watched(self) -> bool:
        return time.monotonic() - self._looked < _INTEREST_S

    def _remember(self, pool: Pool) -> None:
        self.pool = pool
        for holder in pool.holders:
            self.last_holder = holder
            if holder.step:
                written = self.written.setdefault(holder.request_id, {})
                written[holder.step] = holder.tokens_written
        while len(self.written) > _NUM_REMEMBERED:
            self.written.popitem(last=False)
