"""The life of a server around an engine that cannot load."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
import uvicorn
from engine_gate import PATIENCE_S

from kit.api import GenerationRequest, ImageEngine, load_config
from kit.errors import CheckpointError, UnavailableError
from kit.server.app import create_app
from kit.server.listen import open_listener
from kit.server.run import _serve, _Server
from kit.server.settings import ServerSettings


class Damaged(ImageEngine):
    """An engine that meets a damaged file when it loads, after the server has begun to listen."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint, load_config(checkpoint))
        self.may_load = threading.Event()

    def start(self) -> None:
        assert self.may_load.wait(PATIENCE_S)
        raise CheckpointError("shard 2 is damaged")


async def ask(listener: socket.socket, path: str) -> str:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return text


def test_a_server_listens_while_it_loads_and_ends_with_what_loading_raised(
    checkpoint: Path,
) -> None:
    engine = Damaged(checkpoint)
    app = create_app(engine, ServerSettings(name="m"))
    server = _Server(uvicorn.Config(app, log_config=None, ws="none"))
    waiting = engine.submit(GenerationRequest("a cat"))

    async def run() -> None:
        listener = open_listener("127.0.0.1", 0)
        serving = asyncio.create_task(_serve(engine, server, listener, "m", grace_s=1))
        health, ready = await ask(listener, "/health"), await ask(listener, "/ready")
        assert health.startswith("HTTP/1.1 200")
        assert ready.startswith("HTTP/1.1 503")
        assert "loading the weights" in ready
        engine.may_load.set()
        with pytest.raises(CheckpointError, match="shard 2"):
            await asyncio.wait_for(serving, PATIENCE_S)

    asyncio.run(run())
    with pytest.raises(UnavailableError, match="shutting down"):
        waiting.future.result(PATIENCE_S)
