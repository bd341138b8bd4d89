"""Pictures as files: PNG, JPEG and WebP, with the replay record inside, written and read."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from kit.engine.reference_files import DEFAULT_LIMITS
from kit.engine.replay import MAX_RECORD_BYTES, record_from_json, record_to_json
from kit.errors import RecordError, flag_error
from kit.request import ReplayRecord

ImageFormat = Literal["png", "jpeg", "webp"]
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)

DEFAULT_QUALITY = 95
"""Of jpeg and webp, where none is asked for."""

PNG_KEYWORD = "kit.replay"
"""Keyword of the iTXt chunk that holds the record (PNG specification, section 11.3.3.4)."""

EXIF_IFD = 0x8769
EXIF_USER_COMMENT = 0x9286
EXIF_ASCII = b"ASCII\0\0\0"
"""The eight bytes before a user comment that name its character code (Exif 2.32, 4.6.5)."""

# A JPEG marker holds 65533 bytes; what is left is for the tables around the comment.
_MAX_JPEG_RECORD_BYTES = 65_000

_SUFFIXES: Mapping[str, ImageFormat] = MappingProxyType(
    {"": "png", ".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
)

_MEDIA_TYPES: Mapping[ImageFormat, str] = MappingProxyType(
    {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}
)


@dataclass(frozen=True)
class RecordedPicture:
    """A picture from a file, with the record that it carries."""

    pixels: npt.NDArray[np.uint8]
    """uint8 [H, W, 3], RGB."""

    image_format: ImageFormat
    record: ReplayRecord


@dataclass(frozen=True)
class EncodedImage:
    """A picture as the bytes of a file."""

    data: bytes
    media_type: str
    """E.g. image/png."""

    has_record: bool
    """False without a record, or where the record is longer than the format can hold."""


def encode_image(
    image: npt.NDArray[np.uint8],
    image_format: ImageFormat = "png",
    *,
    quality: int | None = None,
    record: ReplayRecord | None = None,
) -> EncodedImage:
    """Encode uint8 [H, W, 3] RGB; equal arguments give equal bytes, and the record no other pixels.

    quality: 0 to 100, of jpeg and webp (None: DEFAULT_QUALITY); png is lossless and takes none.
    record: goes into an iTXt chunk of a PNG, into the Exif user comment of the other two. A JPEG
    holds 65,000 bytes of it; a longer one is left out, which `has_record` says.
    """
    assert quality is None or (image_format != "png" and 0 <= quality <= 100), "checked before"
    text = None if record is None else record_to_json(record, ascii_only=image_format != "png")
    limit = _MAX_JPEG_RECORD_BYTES if image_format == "jpeg" else MAX_RECORD_BYTES
    if text is not None and len(text.encode()) > limit:
        text = None
    options: dict[str, Any] = {}
    if image_format == "png":
        if text is not None:
            options["pnginfo"] = PngImagePlugin.PngInfo()
            options["pnginfo"].add_itxt(PNG_KEYWORD, text)
    else:
        options["quality"] = DEFAULT_QUALITY if quality is None else quality
        if text is not None:
            options["exif"] = _exif(text)
        if image_format == "jpeg":
            options["subsampling"] = 0  # colour at full resolution
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format=image_format.upper(), **options)
    return EncodedImage(buffer.getvalue(), _MEDIA_TYPES[image_format], text is not None)


def output_format(flag: str, path: Path) -> ImageFormat:
    """Return the format that the suffix of an output names, png where it has none.

    Raises ConfigError naming `flag`.
    """
    image_format = _SUFFIXES.get(path.suffix.lower())
    if image_format is None:
        raise flag_error(
            flag,
            "names no format that the kit writes",
            str(path),
            "end it with .png, .jpg, .jpeg or .webp",
        )
    return image_format


def read_picture(path: Path) -> RecordedPicture:
    """Read a file of unknown origin; its record is checked before its pixels are decoded.

    Raises RecordError: no picture, too large, damaged, or without a replay record.
    """
    # What the library thinks odd about a file is said by the error, if it matters.
    with warnings.catch_warnings(action="ignore"):
        try:
            with Image.open(path, formats=[name.upper() for name in IMAGE_FORMATS]) as image:
                return _read(image)
        except (RecordError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise RecordError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        except Exception as error:  # the library raises many kinds for damaged files
            raise RecordError(
                f"{path} cannot be read as a png, jpeg or webp: {type(error).__name__}: {error}"
            ) from error


def _read(image: Image.Image) -> RecordedPicture:
    limit = DEFAULT_LIMITS.max_pixels
    if image.width * image.height > limit:
        raise RecordError(f"{image.width}x{image.height} is more than {limit} pixels")
    image_format = next(name for name in IMAGE_FORMATS if name.upper() == image.format)
    text = _record_text(image)
    if text is None:
        raise RecordError(
            f"this {image_format} carries no replay record; only a file as the kit wrote it does, "
            f"programs that edit or convert pictures drop it (and a jpeg has room for "
            f"{_MAX_JPEG_RECORD_BYTES} bytes of it, a png always holds it)"
        )
    record = record_from_json(text)
    if (image.width, image.height) != (record.image.width, record.image.height):
        raise RecordError(
            f"the picture is {image.width}x{image.height}, its record is of one that was "
            f"{record.image.width}x{record.image.height}; use the file as the kit wrote it"
        )
    return RecordedPicture(np.asarray(image.convert("RGB")), image_format, record)


def _record_text(image: Image.Image) -> str | bytes | None:
    if image.format == "PNG":
        # `image.text` would decode the pixels first, to look behind them too.
        text = image.info.get(PNG_KEYWORD)
        return text if isinstance(text, str) else None
    comment = image.getexif().get_ifd(EXIF_IFD).get(EXIF_USER_COMMENT)
    if not isinstance(comment, bytes) or not comment.startswith(EXIF_ASCII):
        return None
    return comment.removeprefix(EXIF_ASCII)


def _exif(text: str) -> Image.Exif:
    exif = Image.Exif()
    exif.get_ifd(EXIF_IFD)[EXIF_USER_COMMENT] = EXIF_ASCII + text.encode("ascii")
    return exif
