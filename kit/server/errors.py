"""Every error as OpenAI's error object, with the right status and headers."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from kit.errors import (
    CancelledError,
    CapacityError,
    DeadlineError,
    KitError,
    NotFoundError,
    OverloadedError,
    RequestError,
    UnavailableError,
    UnsupportedError,
)
from kit.server.fields import ImageFields
from kit.server.protocol import NO_MASK
from kit.telemetry.log import get_logger

logger = get_logger("server")

_CODES: tuple[tuple[type[KitError], str], ...] = (
    (CapacityError, "request_too_large"),
    (OverloadedError, "overloaded"),
    (UnavailableError, "unavailable"),
    (DeadlineError, "deadline_exceeded"),
    (CancelledError, "cancelled"),
    (UnsupportedError, "unsupported"),
)
_MAX_INPUT_CHARS = 200
_REFERENCE = re.compile(r"((init|input|reference|source)_)?images?(_urls?)?(\[\])?", re.IGNORECASE)
"""Names that reference images have elsewhere."""


def error_response(
    status: int,
    message: str,
    *,
    kind: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Build {"error": {message, type, param, code}}.

    OpenAI's clients send a request with a status of 500 and above twice more. Only 503 is worth
    that: all others would cost the same again, so `x-should-retry` tells them not to.
    """
    content = {"error": _error(message, kind=kind, param=param, code=code)}
    told = {} if status < 500 or status == 503 else {"x-should-retry": "false"}
    return JSONResponse(content, status_code=status, headers={**told, **(headers or {})})


def error_content(error: KitError) -> dict[str, Any]:
    """Return the error object of an error of the kit, as a response or an event holds it."""
    return {
        "error": _error(
            str(error),
            kind=error.http_type,
            param=error.param if isinstance(error, RequestError | UnsupportedError) else None,
            code=_code(error),
        )
    }


def internal_error(error: Exception, where: str) -> dict[str, Any]:
    """Log what nobody expected, and return an error object that names only its kind."""
    logger.error("%s failed", where, exc_info=error)
    return {"error": _error(f"internal error: {type(error).__name__}", kind="server_error")}


def install_error_handlers(app: FastAPI, known_fields: Sequence[str]) -> None:
    """Answer the kit's errors, validation errors and unknown routes in one shape.

    `known_fields` are those of all bodies with all that stands in them.
    """

    @app.exception_handler(KitError)
    async def kit_error(request: Request, error: KitError) -> JSONResponse:
        del request
        content = error_content(error)["error"]
        headers = {}
        if isinstance(error, OverloadedError):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        return error_response(
            error.http_status,
            content["message"],
            kind=content["type"],
            param=content["param"],
            code=content["code"],
            headers=headers,
        )

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid(error.errors(), known_fields, _body_fields(request))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        reason = str(error.detail)
        if error.status_code == 405:
            headers["allow"] = _allowed_methods(app, request)
            reason = f"this path takes {headers['allow']}"
        elif isinstance(error.__cause__, UnicodeDecodeError):
            reason = f"the body is no JSON in UTF-8: {error.__cause__.reason}"
        elif error.status_code == 404:
            reason = f"{reason}; see the page /docs of this server"
        return error_response(
            error.status_code,
            f"{request.method} {request.scope['path']:.{_MAX_INPUT_CHARS}}: {reason}",
            kind="invalid_request_error" if error.status_code < 500 else "server_error",
            headers=headers,
        )


def _allowed_methods(app: FastAPI, request: Request) -> str:
    """The framework names the methods of one route only, and a path may have several."""
    methods: set[str] = set()
    for route in app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(methods))


def _code(error: KitError) -> str | None:
    if isinstance(error, NotFoundError):
        return f"{error.param}_not_found"
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def _body_fields(request: Request) -> Mapping[str, Sequence[str]]:
    """The fields that a JSON body of this route may have, and those of its `extra_body`."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or route.body_field is None:
        return {}
    body = route.body_field.field_info.annotation
    assert body is not None, "a body is declared by its type"
    return {"body": tuple(body.model_fields), "extra_body": tuple(ImageFields.model_fields)}


def _invalid(
    errors: Sequence[Any],
    known_fields: Sequence[str],
    body_fields: Mapping[str, Sequence[str]],
) -> JSONResponse:
    # Of the alternatives of a union, the one that was followed furthest is the one that was meant.
    first = max(errors, key=lambda problem: len(problem["loc"]))
    kind, code = first["type"], None
    param = _param(first["loc"], known_fields, keep_last=kind == "extra_forbidden")
    got = f" (got {first.get('input')!r:.{_MAX_INPUT_CHARS}})"
    message = f"{param or 'body'}: {first['msg']}{got}"
    if kind == "extra_forbidden":
        place, name = ("body", *map(str, first["loc"]))[-2:]
        hint = _hint(name, place, known_fields, body_fields)
        message, code = f"{param}: unknown field; {hint}", "unknown_parameter"
    elif kind == "missing":
        message, code = f"{param or 'body'}: is missing", "missing_required_parameter"
    elif isinstance(first.get("input"), bytes):
        message = "the body was not read; send JSON with the header Content-Type: application/json"
    elif kind == "json_invalid":
        message, param = f"the body is no JSON: {first['ctx']['error']}", None
    return error_response(400, message, kind="invalid_request_error", param=param, code=code)


def _hint(
    name: str,
    place: str,
    known_fields: Sequence[str],
    body_fields: Mapping[str, Sequence[str]],
) -> str:
    """Say what to do about an unknown field; no name is suggested that would be refused again."""
    if place == "extra_body" and name in body_fields.get("body", ()):
        return "extra_body has none of this name, send it beside extra_body"
    if _REFERENCE.fullmatch(name):
        return (
            "reference images are files `image` of a form (multipart/form-data) for "
            "/v1/images/edits or /v1/jobs, or image_url parts of a message for "
            "/v1/chat/completions"
        )
    if name in ("mask", "mask_image", "markup"):
        return NO_MASK
    if name in known_fields:
        return "not in this place, see the page /docs of this server"
    near = difflib.get_close_matches(name, body_fields.get(place, known_fields), n=1)
    return f"did you mean {near[0]!r}?" if near else "it is no field of this API"


def _param(
    location: Sequence[str | int], known_fields: Sequence[str], *, keep_last: bool
) -> str | None:
    """Spell a location as OpenAI does: messages[0].content; `extra_body` means its field."""
    if location and location[0] in ("query", "path", "header"):
        return str(location[1])
    parts: list[str] = []
    for position, part in enumerate(location):
        is_last = keep_last and position == len(location) - 1
        # A part of a message is followed by its type, by which the union tells it.
        if parts and parts[-1].startswith("content[") and isinstance(location[position - 1], int):
            continue
        if isinstance(part, int):
            if parts:
                parts[-1] += f"[{part}]"
        # What else stands in a location are names of union members.
        elif part != "extra_body" and (part in known_fields or is_last):
            parts.append(part)
    if not parts and "extra_body" in location:
        return "extra_body"
    return ".".join(parts) or None


def _error(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {
        "message": _clean(message),
        "type": kind,
        "param": None if param is None else _clean(param),
        "code": code,
    }


def _clean(text: str) -> str:
    """Escape what UTF-8 cannot hold: a body may spell half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()
