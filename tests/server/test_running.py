"""A public request of several pictures: queued, failed, cancelled together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import pytest
from engine_gate import PATIENCE_S, Gate

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.errors import CancelledError, InvalidRequestError, OverloadedError
from kit.server.normalise import Defaults, PublicRequest, public_request
from kit.server.protocol import ImageGenerationBody
from kit.server.running import ImageDone, ImageStep, RunningRequest

QUICK = SamplingParams(num_inference_steps=1, guidance_scale=1, seed=1)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ImageEngine]:
    stage = {
        "diffusion_kv_mode": "paged_scheduler",
        "diffusion_kv_max_rows_per_request": 2,
        "max_queued_requests": 2,
        "max_num_seqs": 2,
    }
    with ImageEngine(checkpoint, load_config(checkpoint, stage_overrides={"0": stage})) as running:
        yield running


def asked(num_images: int, **fields: object) -> PublicRequest:
    body = ImageGenerationBody.model_validate(
        {"prompt": "a cat", "n": num_images, "num_inference_steps": 2, "guidance_scale": 1}
        | {"seed": 1, **fields}
    )
    return public_request(body, prompt="a cat", defaults=Defaults(seed=None, timeout_s=None))


def check_idle(engine: ImageEngine) -> None:
    status = engine.status()
    assert (status.waiting, status.admitted, status.running) == (0, 0, ())
    assert status.pages.used == 0


def test_events_come_in_order_from_the_first_step_to_the_last_picture(engine: ImageEngine) -> None:
    async def run() -> list[ImageStep | ImageDone]:
        running = RunningRequest(engine, asked(2))
        await running.submit()
        return [event async for event in running.events()]

    seen = asyncio.run(run())
    assert [(e.index, e.event.step if isinstance(e, ImageStep) else "done") for e in seen] == [
        (0, 1),
        (0, 2),
        (0, "done"),
        (1, 1),
        (1, 2),
        (1, "done"),
    ]
    assert [e.result.sampling.seed for e in seen if isinstance(e, ImageDone)] == [1, 2]
    check_idle(engine)


def test_a_full_queue_refuses_all_pictures_or_none(engine: ImageEngine) -> None:
    gate = Gate()
    blocker = engine.submit(GenerationRequest("a cat", QUICK), gate)
    gate.wait()

    async def run() -> None:
        refused = RunningRequest(engine, asked(3))
        with pytest.raises(OverloadedError):
            await refused.submit()
        for handle in refused.handles:
            assert isinstance(handle.future.exception(PATIENCE_S), CancelledError)
        assert engine.status().waiting + engine.status().admitted == 0
        fitting = RunningRequest(engine, asked(2))
        await fitting.submit()
        gate.open()
        assert len([e async for e in fitting.events() if isinstance(e, ImageDone)]) == 2

    asyncio.run(run())
    blocker.future.result(PATIENCE_S)
    check_idle(engine)


def test_a_refused_request_queues_nothing(engine: ImageEngine) -> None:
    async def run() -> None:
        refused = RunningRequest(engine, asked(2, seed=-1))
        with pytest.raises(InvalidRequestError, match="seed"):
            await refused.submit()
        assert refused.handles == ()

    asyncio.run(run())
    check_idle(engine)


async def cancel_the_second(engine: ImageEngine, running: RunningRequest) -> None:
    async for _ in running.events():
        engine.cancel(running.handles[1].request_id)


def test_the_end_of_one_picture_ends_the_others(engine: ImageEngine) -> None:
    async def run() -> RunningRequest:
        running = RunningRequest(engine, asked(3, num_inference_steps=500))
        await running.submit()
        with pytest.raises(CancelledError):
            await cancel_the_second(engine, running)
        return running

    running = asyncio.run(run())
    for handle in running.handles:
        assert isinstance(handle.future.exception(PATIENCE_S), CancelledError)
    check_idle(engine)


def test_who_stops_listening_cancels(engine: ImageEngine) -> None:
    async def run() -> RunningRequest:
        running = RunningRequest(engine, asked(2, num_inference_steps=500))
        await running.submit()
        async with aclosing(running.events()) as events:
            async for event in events:
                assert isinstance(event, ImageStep)
                break
        return running

    for handle in asyncio.run(run()).handles:
        assert isinstance(handle.future.exception(PATIENCE_S), CancelledError)
    check_idle(engine)


def test_who_leaves_while_the_request_is_tokenised_leaves_nothing(engine: ImageEngine) -> None:
    """The thread that submits cannot be stopped; what it has queued is cancelled when it ends."""
    gate = Gate()
    blocker = engine.submit(GenerationRequest("a cat", QUICK), gate)
    gate.wait()
    release = threading.Event()

    async def run() -> RunningRequest:
        loop = asyncio.get_running_loop()
        # One thread of the pool, busy: the submission waits behind it.
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, release.wait, PATIENCE_S)
        running = RunningRequest(engine, asked(2))
        submitting = asyncio.create_task(running.submit())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        release.set()
        await busy
        while len(running.handles) < 2:
            await asyncio.sleep(0.01)
        return running

    running = asyncio.run(run())
    for handle in running.handles:
        assert isinstance(handle.future.exception(PATIENCE_S), CancelledError)
    gate.open()
    blocker.future.result(PATIENCE_S)
    check_idle(engine)
