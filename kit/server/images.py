"""POST /v1/images/generations."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response

from kit.server.answers import ImagesAnswer
from kit.server.pictures import images_answer
from kit.server.protocol import ImageGenerationBody
from kit.server.service import Service, answers, json_answer
from kit.server.streams import ImageEvents, stream


def install_images(app: FastAPI, service: Service) -> None:
    """Add POST /v1/images/generations."""

    @app.post(
        "/v1/images/generations",
        tags=["pictures"],
        response_model=ImagesAnswer,
        responses=answers(
            ImagesAnswer,
            "The pictures in the order of their seeds, or with `stream` their events",
            stream="image_generation.partial_image and image_generation.completed events",
        ),
    )
    async def generate(body: ImageGenerationBody, request: Request) -> Response:
        """Draw pictures from a prompt."""
        public = service.read_generation(body)
        if public.stream:
            return stream(await service.start(public), ImageEvents(public))
        pictures = await service.draw(request, public)
        return json_answer(images_answer(public, pictures, service.settings.name))
