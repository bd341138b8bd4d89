"""Waiting for results: all of them, the first error, a client that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_gate import PATIENCE_S, Gate
from starlette.requests import Request

from kit.api import GenerationRequest, ImageEngine, RequestHandle, SamplingParams, load_config
from kit.errors import CancelledError, DeadlineError
from kit.server.disconnect import await_or_cancel

QUICK = GenerationRequest("a cat", SamplingParams(num_inference_steps=1, seed=1))
LONG = GenerationRequest("a cat", SamplingParams(num_inference_steps=500, seed=1))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    with ImageEngine(checkpoint, load_config(checkpoint)) as running:
        yield running


class Client:
    """The connection of a client, which stays until it leaves."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    @property
    def request(self) -> Request:
        return Request({"type": "http", "headers": []}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}


def check_ended(engine: ImageEngine, *handles: RequestHandle) -> None:
    for handle in handles:
        assert handle.future.exception(PATIENCE_S) is not None
    status = engine.status()
    assert (status.waiting, status.admitted, status.running) == (0, 0, ())


def test_results_come_in_the_order_of_their_handles(engine: ImageEngine) -> None:
    async def run() -> None:
        handles = [engine.submit(QUICK) for _ in range(2)]
        results = await await_or_cancel(Client().request, engine, handles)
        assert [r.request_id for r in results] == [h.request_id for h in handles]

    asyncio.run(run())


def test_a_client_that_leaves_cancels_the_running_and_the_waiting(engine: ImageEngine) -> None:
    gate = Gate()

    async def run() -> tuple[RequestHandle, RequestHandle]:
        client = Client()
        handles = engine.submit(LONG, gate), engine.submit(LONG)
        waiter = asyncio.ensure_future(await_or_cancel(client.request, engine, handles))
        await asyncio.to_thread(gate.wait)
        client.leave()
        with pytest.raises(CancelledError, match="client left"):
            await waiter
        assert handles[1].future.done(), "a waiting request ends at once"
        assert not handles[0].future.done(), "the running one stands at its step"
        gate.open()
        return handles

    check_ended(engine, *asyncio.run(run()))
    assert len(gate.events) == 1, "it made a step after its client had left"


def test_one_that_fails_cancels_its_siblings(engine: ImageEngine) -> None:
    gate = Gate()

    async def run() -> list[RequestHandle]:
        late = GenerationRequest("a cat", LONG.sampling, timeout_s=0.05)
        handles = [engine.submit(LONG, gate), engine.submit(late), engine.submit(LONG)]
        with pytest.raises(DeadlineError):
            await await_or_cancel(Client().request, engine, handles)
        gate.open()
        return handles

    check_ended(engine, *asyncio.run(run()))


def test_a_server_that_gives_up_cancels(engine: ImageEngine) -> None:
    gate = Gate()

    async def run() -> RequestHandle:
        handle = engine.submit(LONG, gate)
        waiter = asyncio.ensure_future(await_or_cancel(Client().request, engine, [handle]))
        await asyncio.to_thread(gate.wait)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        gate.open()
        return handle

    check_ended(engine, asyncio.run(run()))
    assert len(gate.events) == 1
