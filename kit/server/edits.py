"""POST /v1/images/edits: reads the form as clients send it, then says that nothing is edited."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from kit.errors import InvalidRequestError, UnsupportedError
from kit.server.answers import ErrorAnswer
from kit.server.fields import TEXT_TO_IMAGE_ONLY, markers
from kit.server.forms import Form, from_text, read_form
from kit.server.normalise import public_request
from kit.server.protocol import ImageEditForm
from kit.server.service import Service
from kit.server.settings import ServerSettings
from kit.server.uploads import check_image

# `image` is what a client calls one file, `image[]` what it calls each of several.
_FILES = ("image", "mask", "markup")


def install_edits(app: FastAPI, service: Service) -> None:
    """Add POST /v1/images/edits."""

    @app.post(
        "/v1/images/edits",
        tags=["pictures"],
        status_code=501,
        response_model=ErrorAnswer,
        response_description="Always, for a form that is right: " + TEXT_TO_IMAGE_ONLY,
        openapi_extra={"requestBody": _request_body()},
    )
    async def edit(request: Request) -> None:
        """Check the form of an edit and refuse it: the server draws from text only."""
        content_type = request.headers.get("content-type", "")
        if not content_type.lower().startswith("multipart/form-data"):
            raise HTTPException(415, f"expected multipart/form-data, got {content_type!r:.100}")
        settings = service.settings
        async with request.form(
            max_files=settings.max_images + len(_FILES),
            max_fields=settings.max_form_fields,
            max_part_size=settings.max_form_field_bytes,
        ) as data:
            form = read_form(data, files=_FILES)
            await asyncio.to_thread(_check_files, form, settings)
        body = _read_fields(form.fields)
        service.check_model(body.model)
        public = public_request(body, prompt=body.prompt, defaults=service.defaults)
        await asyncio.to_thread(service.engine.preprocessor.prepare, public.children[0])
        raise UnsupportedError(
            f"image: {TEXT_TO_IMAGE_ONLY} and edits nothing; POST /v1/images/generations draws "
            f"from a prompt alone",
            param="image",
        )


def _read_fields(fields: dict[str, Any]) -> ImageEditForm:
    """Turn text into the types of the fields; raises RequestValidationError."""
    untyped = markers(ImageEditForm)
    values = {n: from_text(v) if n in untyped else v for n, v in fields.items()}
    try:
        return ImageEditForm.model_validate(values, strict=False)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _check_files(form: Form, settings: ServerSettings) -> None:
    """Look at sizes and headers, and decode nothing; raises InvalidRequestError."""
    images = form.files["image"]
    if not images:
        raise InvalidRequestError("image: is missing; send at least one file", param="image")
    if len(images) > settings.max_images:
        raise InvalidRequestError(
            f"image: got {len(images)} files, at most {settings.max_images} are taken",
            param="image",
        )
    for name, uploads in form.files.items():
        if name != "image" and len(uploads) > 1:
            raise InvalidRequestError(f"{name}: got {len(uploads)} files, takes one", param=name)
        for upload in uploads:
            check_image(upload.file, upload.size or 0, settings, param=name)


def _request_body() -> dict[str, Any]:
    """The form in the API's document; the files are no fields of the model, and text is no null."""
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
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
