"""POST /v1/images/edits: pictures from reference images and a prompt, sent as a form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from kit.errors import InvalidRequestError
from kit.numerals import NUMERAL, read_number
from kit.request import ReferenceImage
from kit.server.answers import ImagesAnswer
from kit.server.fields import NotSupported, markers
from kit.server.forms import Form, from_text, is_form, read_form
from kit.server.normalise import PublicRequest, public_request, with_images
from kit.server.pictures import images_answer
from kit.server.protocol import ImageEditForm
from kit.server.references import read_files
from kit.server.service import Service, answers, json_answer
from kit.server.streams import ImageEvents, stream

_FILES = ("image",)
"""What a client calls one file; each of several is `image[]`."""

# By the type of a field: what reads its text, and what was expected where that gives None.
_READERS: Mapping[object, tuple[Callable[[str], object], str]] = {
    int | None: (read_number, NUMERAL),
    float | None: (read_number, NUMERAL),
    bool | None: ({"true": True, "false": False}.get, "true or false"),
}


def install_edits(app: FastAPI, service: Service) -> None:
    """Add POST /v1/images/edits."""

    @app.post(
        "/v1/images/edits",
        tags=["pictures"],
        response_model=ImagesAnswer,
        responses=answers(
            ImagesAnswer,
            "The pictures in the order of their seeds, or with `stream` their events",
            stream="image_edit.partial_image and image_edit.completed events",
        ),
        openapi_extra={"requestBody": {"required": True, "content": form_content()}},
    )
    async def edit(request: Request) -> Response:
        """Draw pictures from one to three reference images and a prompt."""
        public = await read_edit(request, service)
        if public.stream:
            return stream(await service.start(public), ImageEvents(public, "image_edit"))
        pictures = await service.draw(request, public)
        return json_answer(images_answer(public, pictures, service.settings.name))


async def read_edit(request: Request, service: Service) -> PublicRequest:
    """Return what a form asks for; raises RequestError, RequestValidationError, HTTPException.

    Its text is looked at before any picture is decoded.
    """
    if not is_form(request.headers):
        content_type = request.headers.get("content-type", "")
        raise HTTPException(415, f"expected multipart/form-data, got {content_type!r:.100}")
    settings = service.settings
    async with request.form(
        max_files=settings.max_form_files,
        max_fields=settings.max_form_fields,
        max_part_size=settings.max_form_field_bytes,
    ) as data:
        form = read_form(data, files=_FILES)
        body = _read_fields(form.fields)
        service.check_model(body.model)
        public = public_request(body, prompt=body.prompt, defaults=service.defaults)
        images = await asyncio.to_thread(_read_images, form, service)
    return with_images(public, images)


def form_content() -> dict[str, Any]:
    """Return the form as the content of a body in the API's document.

    The files are no fields of the model, and text is no null.
    """
    schema = ImageEditForm.model_json_schema()
    for field in schema["properties"].values():
        kinds = [kind for kind in field.pop("anyOf", []) if kind != {"type": "null"}]
        field.update(*kinds)
        field.pop("default", None)
        if "enum" in field:
            field["enum"] = [value for value in field["enum"] if value is not None]
    file = {"type": "string", "format": "binary"}
    files = {"image[]": {"type": "array", "items": file}} | dict.fromkeys(_FILES, file)
    schema["properties"] = files | {
        name: field for name, field in schema["properties"].items() if field.get("enum") != []
    }
    schema["required"] = ["image", *schema["required"]]
    return {"multipart/form-data": {"schema": schema}}


def _read_fields(fields: dict[str, Any]) -> ImageEditForm:
    """Turn text into the types of the fields; raises RequestValidationError, RequestError."""
    try:
        return ImageEditForm.model_validate({n: _read_text(n, v) for n, v in fields.items()})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _read_text(name: str, value: Any) -> Any:
    """Read a field by its type; raises InvalidRequestError for what JSON would not write so."""
    field, marker = ImageEditForm.model_fields.get(name), markers(ImageEditForm).get(name)
    if isinstance(value, UploadFile) and field is not None:
        reason = "is text"
        if isinstance(marker, NotSupported):
            reason = f"is not supported: {marker.reason}"
        raise InvalidRequestError(f"{name}: got a file, but {name} {reason}", param=name)
    if marker is not None:
        return from_text(value)
    if not isinstance(value, str) or field is None or field.annotation not in _READERS:
        return value
    read, expected = _READERS[field.annotation]
    found = read(value)
    if found is None:
        raise InvalidRequestError(f"{name}: got {value!r:.100}, expected {expected}", param=name)
    return found


def _read_images(form: Form, service: Service) -> tuple[ReferenceImage, ...]:
    if not form.files["image"]:
        raise InvalidRequestError("image: is missing; send at least one file", param="image")
    return read_files(form.files["image"], service.engine.preprocessor, service.settings)
