"""Every error as OpenAI's error object, with the right status."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from kit.errors import KitError, RequestError
from kit.telemetry.log import get_logger

logger = get_logger("server")


def error_response(
    status: int, message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> JSONResponse:
    """Build {"error": {message, type, param, code}}."""
    body = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": body}, status_code=status)


def install_error_handlers(app: FastAPI) -> None:
    """Answer the kit's errors, validation errors and unknown routes in one shape."""

    @app.exception_handler(KitError)
    async def kit_error(request: Request, error: KitError) -> JSONResponse:
        del request
        param = error.param if isinstance(error, RequestError) else None
        return error_response(error.http_status, str(error), kind=error.http_type, param=param)

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(ValidationError)
    async def invalid_body(
        request: Request, error: RequestValidationError | ValidationError
    ) -> JSONResponse:
        del request
        first = error.errors()[0]
        location = [str(part) for part in first["loc"] if part != "body"]
        param = ".".join(location) or None
        message = f"{param or 'body'}: {first['msg']} (got {first.get('input')!r:.200})"
        return error_response(400, message, kind="invalid_request_error", param=param)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(error.status_code, message, kind="invalid_request_error")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = f"internal error: {type(error).__name__}"
        return error_response(500, message, kind="server_error")
