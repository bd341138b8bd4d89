"""The HTTP application: every endpoint around one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from kit.engine.engine import ImageEngine
from kit.server.answers import ErrorAnswer
from kit.server.chat import install_chat
from kit.server.edits import install_edits
from kit.server.errors import install_error_handlers
from kit.server.health import install_health
from kit.server.images import install_images
from kit.server.info import install_info
from kit.server.jobs import install_jobs
from kit.server.kv import install_kv
from kit.server.models import install_models
from kit.server.protocol import known_fields
from kit.server.request_log import RequestLog
from kit.server.security import install_security
from kit.server.service import Service
from kit.server.settings import ServerSettings


def create_app(engine: ImageEngine, settings: ServerSettings) -> FastAPI:
    """Build the application; the engine may be started later, its requests wait until then."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        yield
        await jobs.close()

    app = FastAPI(
        title="hunyuan-paged-kit",
        description="HunyuanImage-3.0 behind OpenAI's API; docs/api.md has the rules.",
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect is no answer in OpenAI's shape
        responses={
            "4XX": {"model": ErrorAnswer, "description": "The caller must change something"},
            "5XX": {"model": ErrorAnswer, "description": "The server cannot; 503: not now"},
        },
    )
    install_error_handlers(app, known_fields())
    service = Service(engine, settings)
    install_images(app, service)
    install_edits(app, service)
    install_chat(app, service)
    jobs = install_jobs(app, service)
    install_models(app, settings)
    install_info(app, engine, settings)
    install_health(app, engine, settings)
    install_kv(app, engine, settings)
    install_security(app, settings)
    app.add_middleware(RequestLog)  # the last one is the outermost
    return app
