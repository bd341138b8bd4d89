"""Asks one server over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from kit.demo.answers import (
    Info,
    Picture,
    Pool,
    Preview,
    Step,
    read_info,
    read_picture,
    read_pool,
)
from kit.errors import KitError

# A picture may wait in the queue for as long as the server lets it; a dead peer shows at once.
_NO_TIME_LIMIT = httpx2.Timeout(None, connect=5.0)
_PROBE_LIMIT_S = 5.0
_STEP = re.compile(r": picture (\d+) of (\d+), step (\d+) of (\d+)")


class UnreachableError(KitError):
    """Nothing answers at the server's URL, or the connection broke."""


class AnswerError(KitError):
    """The server answered with an error."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        self.message, self.status, self.param, self.code = message, status, param, code
        self.retry_after_s = retry_after_s
        super().__init__(message)


@dataclass(frozen=True)
class Readiness:
    """GET /ready."""

    reason: str | None
    """Why a request sent now would not be served; None when it would be."""

    num_queued: int
    num_running: int


class ServerClient:
    """One server; `close` it on the event loop that used it."""

    def __init__(
        self, url: str, api_key: str | None = None, *, public_url: str | None = None
    ) -> None:
        self.public_url = (public_url or url).rstrip("/")
        self.url, self.has_key = url.rstrip("/"), api_key is not None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env: a proxy of the environment is not meant for the server of this page.
        self._http = httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=_PROBE_LIMIT_S, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ready(self) -> Readiness:
        """Ask for readiness; raises UnreachableError."""
        with _explained(self.url):
            body = (await self._http.get("/ready")).json()
            return Readiness(
                body["reason"], body["num_queued_requests"], body["num_running_requests"]
            )

    async def info(self) -> Info:
        """Ask what runs; raises UnreachableError, AnswerError."""
        with _explained(self.url):
            return read_info(_checked(await self._http.get("/v1/server/info")).json())

    async def text(self, path: str) -> str:
        """Return the body of a GET; raises UnreachableError, AnswerError."""
        with _explained(self.url):
            return _checked(await self._http.get(path)).text

    async def pools(self) -> AsyncGenerator[Pool, None]:
        """Yield the page pool now and after each change; raises UnreachableError, AnswerError."""
        async with self._open("GET", "/v1/kv", params={"stream": "true"}) as response:
            async for _, data in _events(response):
                if data is not None:
                    yield read_pool(data)

    async def draw(
        self, body: dict[str, Any], images: Sequence[Path] = ()
    ) -> AsyncGenerator[Step | Preview | Picture, None]:
        """Ask for pictures as a stream, with the files of reference images if there are any.

        Closing the generator cancels them. Raises UnreachableError, AnswerError.
        """
        path, sent = "/v1/images/generations", {"json": body}
        if images:
            path, sent = "/v1/images/edits", await asyncio.to_thread(_as_form, body, images)
        async with self._open("POST", path, **sent) as response:
            async for comment, data in _events(response):
                if data is None:
                    if step := _STEP.match(comment):
                        index, num_images, number, num_steps = map(int, step.groups())
                        yield Step(index - 1, num_images, number, num_steps)
                elif "error" in data:
                    raise _refusal(data, None, None)
                elif data["type"].endswith(".partial_image"):
                    yield Preview(data["image_index"], base64.b64decode(data["b64_json"]))
                elif data["type"].endswith(".completed"):
                    yield read_picture(data, body["prompt"])

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, **arguments: Any
    ) -> AsyncIterator[httpx2.Response]:
        with _explained(self.url):
            async with self._http.stream(
                method, path, timeout=_NO_TIME_LIMIT, **arguments
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                yield _checked(response)


def form_fields(body: dict[str, Any]) -> dict[str, str]:
    """Return a body as the fields of a form, whose values are text."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()
    }


def _as_form(body: dict[str, Any], images: Sequence[Path]) -> dict[str, Any]:
    files = [("image[]", (image.name, image.read_bytes())) for image in images]
    return {"data": form_fields(body), "files": files}


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn what the HTTP library and JSON raise into UnreachableError."""
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise UnreachableError(f"{url} does not answer: {reason}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise UnreachableError(f"{url} does not answer as a server of this kit does") from error


def _checked(response: httpx2.Response) -> httpx2.Response:
    if response.status_code == 200:
        return response
    after = response.headers.get("retry-after", "")
    raise _refusal(response.json(), response.status_code, int(after) if after.isdecimal() else None)


def _refusal(body: dict[str, Any], status: int | None, after: int | None) -> AnswerError:
    error = body["error"]
    return AnswerError(
        error["message"],
        status=status,
        param=error["param"],
        code=error["code"],
        retry_after_s=after,
    )


async def _events(response: httpx2.Response) -> AsyncIterator[tuple[str, Any]]:
    """Yield (comment, None) or ("", data) of each server-sent event."""
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield line, None
        elif line.startswith("data: "):
            yield "", json.loads(line[len("data: ") :])
