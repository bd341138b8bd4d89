"""Guards every route but probes and API pages with the operator's key."""

from __future__ import annotations

import hashlib
import hmac

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kit.server.body import LimitedBody
from kit.server.errors import error_response
from kit.server.root_path import RootPath, route_path
from kit.server.settings import ServerSettings

PROBES = ("/health", "/ready")
"""Open with any settings: what runs the server must ask them, and they name no request."""


def install_security(app: FastAPI, settings: ServerSettings) -> None:
    """Install the key, the limits of bodies and the root path around everything added before."""
    # The last one added is the outermost: the key is checked before a body is read.
    app.add_middleware(
        LimitedBody, max_bytes=settings.max_body_bytes, max_json_bytes=settings.max_json_bytes
    )
    if settings.api_key is not None:
        pages = (
            app.docs_url,
            app.redoc_url,
            app.openapi_url,
            app.swagger_ui_oauth2_redirect_url,
        )
        opened = frozenset((*PROBES, *(page for page in pages if page)))
        app.add_middleware(ApiKey, key=settings.api_key, open_paths=opened)
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path)


class ApiKey:
    """ASGI middleware: 401 without `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, *, key: str, open_paths: frozenset[str]) -> None:
        self._app, self._open_paths = app, open_paths
        self._digest = _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] != "lifespan" and route_path(scope) not in self._open_paths
        if is_guarded and not self._has_key(Headers(scope=scope)):
            response = error_response(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                kind="invalid_request_error",
                code="invalid_api_key",
            )
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Equal lengths whatever was sent: the comparison tells nothing by its time.
        return hmac.compare_digest(_digest(given.strip()), self._digest) and (
            scheme.lower() == "bearer"
        )


def _digest(key: str) -> bytes:
    # Header values are latin-1 text: encoding them never fails.
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()
