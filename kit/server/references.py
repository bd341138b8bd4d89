"""Reference images of a request: files of a form, and data URLs of a conversation."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Sequence

from starlette.datastructures import UploadFile

from kit.engine.preprocess import Preprocessor
from kit.engine.reference_files import FileLimits
from kit.errors import InvalidRequestError
from kit.request import ReferenceImage
from kit.server.settings import ServerSettings

_DATA_URL = re.compile(r"data:image/(?:png|jpeg|jpg|webp);base64,", re.IGNORECASE)


def read_files(
    uploads: Sequence[UploadFile], preprocessor: Preprocessor, settings: ServerSettings
) -> tuple[ReferenceImage, ...]:
    """Read the files of a form in their order; takes up to seconds, so never on the event loop.

    Raises InvalidRequestError or UnsupportedError with param `image`; what is wrong with one of
    several files has param `image[1]`, counted from 0.
    """
    preprocessor.check_references(len(uploads), "image")
    limits, is_one = _limits(settings), len(uploads) == 1
    return tuple(
        preprocessor.read_image(upload.file, "image" if is_one else f"image[{index}]", limits)
        for index, upload in enumerate(uploads)
    )


def read_urls(
    urls: Sequence[tuple[str, str]], preprocessor: Preprocessor, settings: ServerSettings
) -> tuple[ReferenceImage, ...]:
    """Read data URLs, each with the field that it stands in; errors as above, naming the field."""
    if urls:
        preprocessor.check_references(len(urls), urls[-1][0])
    limits = _limits(settings)
    return tuple(
        preprocessor.read_image(io.BytesIO(_decode(url, field)), field, limits)
        for field, url in urls
    )


def _limits(settings: ServerSettings) -> FileLimits:
    return FileLimits(settings.max_image_bytes, settings.max_image_pixels)


def _decode(url: str, field: str) -> bytes:
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidRequestError(
            f"{field}: expected data:image/png;base64,... (or jpeg, webp), got {url[:40]!r}; this "
            f"server fetches nothing, send the picture itself",
            param=field,
        )
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(f"{field}: is no base64: {error}", param=field) from error
