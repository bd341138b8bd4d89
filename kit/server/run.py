"""Start the engine, then listen; stop the engine when the server stops."""

from __future__ import annotations

from pathlib import Path

import uvicorn

from kit.config.deploy import DeployConfig
from kit.engine.engine import ImageEngine
from kit.server.app import create_app
from kit.telemetry.log import get_logger

logger = get_logger("server")


def serve(model: Path, config: DeployConfig, *, name: str, host: str, port: int) -> int:
    """Serve until interrupted; returns the exit code. Errors as in ImageEngine."""
    with ImageEngine(model, config) as engine:
        app = create_app(engine, name=name)
        shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::") else host
        logger.info("serving %s on http://%s:%d (API: /docs, health: /health)", name, shown, port)
        uvicorn.run(app, host=host, port=port, log_level="warning")
    return 0
