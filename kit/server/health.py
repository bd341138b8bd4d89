"""Whether the server lives, whether it would serve a request soon, and its metrics."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from kit.engine.engine import ImageEngine
from kit.engine.status import unready_reason
from kit.server.settings import ServerSettings


def install_health(app: FastAPI, engine: ImageEngine, settings: ServerSettings) -> None:
    """Add GET /health, /ready and /metrics; some load balancers probe with HEAD."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """Liveness: 200 as long as the process answers."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get(
        "/ready",
        tags=["operation"],
        response_model=dict[str, Any],
        responses={503: {"description": "Not ready, with the reason", "model": dict[str, Any]}},
    )
    async def ready() -> JSONResponse:
        """Readiness: 200 when a request sent now would be served, else 503 with the reason."""
        status = engine.status()
        reason = unready_reason(status, settings.stall_limit_s)
        body = {
            "status": "ready" if reason is None else "not ready",
            "reason": reason,
            "num_queued_requests": status.waiting + status.admitted,
            "num_running_requests": len(status.running),
            "num_steps_total": status.num_steps_total,
            "last_step_age_s": status.last_step_age_s,
            "groups": [group.state for group in status.groups],
        }
        return JSONResponse(body, status_code=200 if reason is None else 503)

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        text, content_type = engine.metrics.exposition()
        return Response(text, media_type=content_type)
