"""The page's client and feed against a live server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from golden_cases import GOLDEN
from PIL import Image

from bench.server_process import ServerProcess, image_body
from kit.demo.answers import Picture, Preview, Step
from kit.demo.client import AnswerError, ServerClient, UnreachableError
from kit.demo.drawing import Drawing
from kit.demo.feed import ServerFeed
from kit.errors import CancelledError

PATIENCE_S = 60
KEY = "a-key"


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("client") / "log"
    flags = (str(checkpoint), "--deploy-config", "hunyuan_image3_paged.yaml")
    with ServerProcess(log, *flags, env={"KIT_API_KEY": KEY}) as server:
        server.wait_until_ready()
        yield server


@asynccontextmanager
async def client_of(server: ServerProcess, key: str | None = KEY) -> AsyncIterator[ServerClient]:
    client = ServerClient(server.url, key)
    try:
        yield client
    finally:
        await client.close()


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not look():
            await asyncio.sleep(0.02)


def test_a_stream_tells_steps_previews_and_the_file(server: ServerProcess) -> None:
    async def draw() -> list[Any]:
        body = image_body(n=2, num_inference_steps=4, partial_images=1, stream=True)
        async with client_of(server) as client:
            return [event async for event in client.draw(body)]

    events = asyncio.run(draw())
    steps = [event for event in events if isinstance(event, Step)]
    assert [(s.image_index, s.step) for s in steps] == [(i, s) for i in (0, 1) for s in range(1, 5)]
    assert {(s.num_images, s.num_steps) for s in steps} == {(2, 4)}
    assert len([event for event in events if isinstance(event, Preview)]) == 2
    pictures = [event for event in events if isinstance(event, Picture)]
    assert [(p.image_index, p.seed, p.size) for p in pictures] == [
        (0, 1, "256x256"),
        (1, 2, "256x256"),
    ]
    with Image.open(io.BytesIO(pictures[0].data)) as image:
        assert image.size == (256, 256)
    assert pictures[0].replay["record"]["request"]["prompt"] == "a cat"


def test_reference_images_go_as_files(server: ServerProcess) -> None:
    images = [GOLDEN / f"ref_image_{j}.png" for j in (1, 0)]
    body = image_body(
        prompt="make it\n<b>blue</b>", seed=2**63 - 1, n=1, num_inference_steps=2,
        guidance_scale=1.0, partial_images=1, stream=True,
    )  # fmt: skip

    async def draw() -> list[Any]:
        async with client_of(server) as client:
            return [event async for event in client.draw(body, images)]

    *others, picture = asyncio.run(draw())
    assert [type(event) for event in others] == [Step, Preview, Step]
    record = picture.replay["record"]["request"]
    assert [(i["width"], i["height"]) for i in record["images"]] == [(220, 110), (150, 150)]
    assert record["prompt"] == picture.prompt == body["prompt"]
    assert record["sampling"]["seed"] == 2**63 - 1


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"num_inference_steps": 0}, 400, "num_inference_steps"),
        ({"num_inference_steps": 2.5}, 400, "num_inference_steps"),
        ({"size": "1x1"}, 400, "size"),
        ({"seed": -1}, 400, "seed"),
    ],
)
def test_a_refusal_names_its_field(
    server: ServerProcess, fields: dict[str, Any], status: int, param: str
) -> None:
    async def draw() -> None:
        async with client_of(server) as client:
            async for _ in client.draw(image_body(stream=True, **fields)):
                pytest.fail("nothing should come")

    with pytest.raises(AnswerError) as caught:
        asyncio.run(draw())
    assert (caught.value.status, caught.value.param) == (status, param)


def test_a_missing_key_and_a_missing_server_are_told_apart(server: ServerProcess) -> None:
    async def ask() -> None:
        async with client_of(server, key=None) as client:
            with pytest.raises(AnswerError) as refused:
                await client.info()
            assert refused.value.code == "invalid_api_key"
        nobody = ServerClient("http://127.0.0.1:9")
        with pytest.raises(UnreachableError, match="does not answer"):
            await nobody.ready()
        await nobody.close()

    asyncio.run(ask())


def test_what_is_no_server_of_the_kit_is_said_to_be_none(server: ServerProcess) -> None:
    async def ask() -> None:
        client = ServerClient(f"{server.url}/docs")
        with pytest.raises(UnreachableError, match="as a server of this kit"):
            await client.ready()
        await client.close()

    asyncio.run(ask())


def test_cancelling_ends_the_request_on_the_server_and_gives_its_pages_back(
    server: ServerProcess,
) -> None:
    steps: list[object] = []

    async def draw() -> None:
        async with client_of(server) as client:
            drawing = Drawing(client, image_body(num_inference_steps=1000, stream=True))
            async with aclosing(drawing.events()) as events:
                async for event in events:
                    steps.append(event)
                    if len(steps) == 2:
                        drawing.cancel()

    with pytest.raises(CancelledError):
        asyncio.run(draw())
    assert 2 <= len(steps) < 1000
    headers = {"Authorization": f"Bearer {KEY}"}
    server.wait_for(lambda: '"used":0' in server.get("/v1/kv", **headers)[1])


def test_a_feed_sees_the_pool_of_a_running_request_and_the_tokens_of_its_steps(
    server: ServerProcess,
) -> None:
    async def watch() -> None:
        async with client_of(server) as client:
            feed = ServerFeed("server", client)
            watching = asyncio.create_task(feed.run())
            await until(lambda: feed.state.kind == "ready")
            assert feed.label == "paged_scheduler"
            await until(lambda: feed.look() is not None)
            drawing = Drawing(client, image_body(num_inference_steps=1000, stream=True))
            await until(lambda: any(len(steps) > 1 for steps in feed.written.values()))
            await until(lambda: feed.state.kind == "busy")
            pool = feed.look()
            assert pool is not None
            [holder] = pool.holders
            assert pool.used == holder.num_pages > 0
            assert feed.last_holder is not None
            [(request_id, written)] = feed.written.items()
            assert request_id == holder.request_id
            per_step = len(holder.rows) * holder.target_tokens
            assert {tokens for step, tokens in written.items() if step > 1} <= {per_step}
            drawing.cancel()
            await until(lambda: (now := feed.look()) is not None and not now.holders)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(watch())
