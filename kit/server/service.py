"""What the endpoints that make pictures share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from kit.engine.engine import ImageEngine
from kit.errors import InvalidRequestError
from kit.request import GenerationResult
from kit.server.disconnect import await_or_cancel
from kit.server.models import check_model
from kit.server.normalise import Defaults, OutputFormat, PublicRequest, public_request
from kit.server.pictures import Picture, encode
from kit.server.protocol import ImageGenerationBody
from kit.server.running import RunningRequest
from kit.server.settings import ServerSettings


@dataclass(frozen=True)
class Service:
    """An engine as the endpoints see it."""

    engine: ImageEngine
    settings: ServerSettings

    @property
    def defaults(self) -> Defaults:
        """What requests get where they say nothing."""
        sampling = self.engine.config.stage.default_sampling_params
        return Defaults(seed=sampling.seed, timeout_s=self.settings.default_timeout_s)

    def check_model(self, model: str | None) -> None:
        """Raise NotFoundError for a model that is not served."""
        check_model(model, self.settings)

    def read_generation(self, body: ImageGenerationBody) -> PublicRequest:
        """Return what a body of /v1/images/generations asks for; raises RequestError."""
        self.check_model(body.model)
        return public_request(body, prompt=body.prompt, defaults=self.defaults)

    async def start(self, public: PublicRequest) -> RunningRequest:
        """Queue a request; raises what ImageEngine.submit raises."""
        limit, num_running = self.engine.config.stage.max_queued_requests, self.engine.num_groups
        # No later time is a better one for it, so this is no overload.
        if len(public.children) > limit + num_running:
            raise InvalidRequestError(
                f"n: got {len(public.children)}, but pictures that run are at most {num_running} "
                f"and those that wait {limit} (max_queued_requests); ask for fewer at once",
                param="n",
            )
        running = RunningRequest(self.engine, public)
        await running.submit()
        return running

    async def draw(self, request: Request, public: PublicRequest) -> list[Picture]:
        """Return the finished pictures; a client that leaves cancels them."""
        running = await self.start(public)
        results = await await_or_cancel(request, self.engine, running.handles)
        return await encode_all(results, public.output)


async def encode_all(results: Sequence[GenerationResult], output: OutputFormat) -> list[Picture]:
    """Write the files of pictures off the event loop."""
    jobs = (asyncio.to_thread(encode, result, output) for result in results)
    return list(await asyncio.gather(*jobs))


def json_answer(answer: BaseModel, status: int = 200) -> Response:
    """Return a model as JSON."""
    return Response(answer.model_dump_json(), status_code=status, media_type="application/json")


def answers(
    model: type[BaseModel], description: str, *, stream: str | None = None
) -> dict[int | str, dict[str, Any]]:
    """Describe a success for the API's document; `stream` says what the events are."""
    content: dict[str, Any] = {}
    if stream is not None:
        # Without a type: readers hold the schema against the whole text or against an event.
        content["text/event-stream"] = {"schema": {"description": stream}}
    return {200: {"model": model, "description": description, "content": content}}
