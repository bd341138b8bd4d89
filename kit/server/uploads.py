"""Looks at an uploaded image file without decoding it: format, bytes, pixels."""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image

from kit.errors import InvalidRequestError
from kit.server.settings import ServerSettings

FORMATS = ("PNG", "JPEG", "WEBP")

_HEADER_BYTES = 30


def check_image(
    file: BinaryIO, num_bytes: int, settings: ServerSettings, *, param: str = "image"
) -> None:
    """Refuse what is no image of the formats above, or larger than `settings` allow.

    Raises InvalidRequestError with `param`. What costs memory is refused by its header: a small
    file may state any size. `file` is read from its start.
    """
    if num_bytes > settings.max_image_bytes:
        raise InvalidRequestError(
            f"{param}: got an image file of {num_bytes} bytes, the limit is "
            f"{settings.max_image_bytes}; send a smaller one",
            param=param,
        )
    file.seek(0)
    webp_size = _webp_size(file.read(_HEADER_BYTES))
    # Before Pillow opens it: that takes memory for a whole WebP canvas.
    if webp_size is not None:
        _check_pixels(webp_size, settings, param)
    file.seek(0)
    try:
        with Image.open(file, formats=FORMATS) as image:
            size = image.size
    # Parsers raise whatever a damaged file makes of them, warnings of bombs among it.
    except Exception as error:
        raise InvalidRequestError(
            f"{param}: cannot be read as a png, jpeg or webp image ({type(error).__name__})",
            param=param,
        ) from error
    _check_pixels(size, settings, param)


def _check_pixels(size: tuple[int, int], settings: ServerSettings, param: str) -> None:
    width, height = size
    if width * height > settings.max_image_pixels:
        raise InvalidRequestError(
            f"{param}: got an image of {width}x{height}, the limit is "
            f"{settings.max_image_pixels} pixels; send a smaller one",
            param=param,
        )


def _webp_size(header: bytes) -> tuple[int, int] | None:
    """Return (width, height) of a WebP file by its first chunk; None for another file.

    RFC 9649: VP8X holds the canvas size less 1 in 24 bits each, VP8L in 14 bits each; VP8 holds
    14 bits each, not less 1.
    """
    if header[:4] != b"RIFF" or header[8:12] != b"WEBP" or len(header) < _HEADER_BYTES:
        return None
    kind, body = header[12:16], header[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        bits = int.from_bytes(body[6:10], "little")
        return bits & 0x3FFF, bits >> 16 & 0x3FFF
    return None
