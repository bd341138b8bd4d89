"""The HTTP application: chat completions that return images, health, models."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from kit.engine.engine import ImageEngine
from kit.engine.png import encode_png
from kit.request import GenerationResult
from kit.server.errors import error_response, install_error_handlers
from kit.server.protocol import ChatCompletionRequest, to_generation_request


def create_app(engine: ImageEngine, *, name: str) -> FastAPI:
    """Build the application around a started engine; `name` is the model's public id."""
    app = FastAPI(title="hunyuan-paged-kit")
    install_error_handlers(app)
    created = int(time.time())

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": created, "owned_by": "local"}
        return {"object": "list", "data": [model]}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatCompletionRequest) -> dict[str, Any] | JSONResponse:
        if body.model not in (None, name):
            return error_response(
                404,
                f"model {body.model!r} is not served here; the served model is {name!r}",
                kind="invalid_request_error",
                param="model",
                code="model_not_found",
            )
        request, warnings = to_generation_request(body)
        handle = engine.submit(request)
        try:
            result = await asyncio.wrap_future(handle.future)
        except asyncio.CancelledError:
            engine.cancel(handle.request_id)
            raise
        return _answer(result, name, [*warnings, *result.warnings])

    return app


def _answer(result: GenerationResult, name: str, warnings: list[str]) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(encode_png(result.image)).decode()
    message = {
        "role": "assistant",
        "content": [{"type": "image_url", "image_url": {"url": url}}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": result.request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [choice],
        "sampling": asdict(result.sampling),
        "metrics": asdict(result.metrics),
        "warnings": warnings,
    }
