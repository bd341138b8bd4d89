"""Decodes reference images from files of unknown origin: png, jpeg and webp."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from kit.errors import InvalidRequestError

FORMATS = ("PNG", "JPEG", "WEBP")

MAX_ASPECT = 16
"""Longer side over shorter: a picture is scaled until it covers its bucket, so a stripe of a few
pixels would be scaled to billions."""

_HEADER_BYTES = 30


@dataclass(frozen=True)
class FileLimits:
    """What is refused by its header."""

    max_bytes: int = 50 << 20
    max_pixels: int = 1 << 26


DEFAULT_LIMITS = FileLimits()


def decode_image(file: BinaryIO, field: str, limits: FileLimits) -> npt.NDArray[np.uint8]:
    """Return uint8 [H, W, 3] of a file, upright by its EXIF, what is transparent on white.

    What costs memory is refused by its header: a small file may state any size. `field` is what
    the caller knows the picture by. Raises InvalidRequestError naming it.
    """
    num_bytes = file.seek(0, 2)
    if num_bytes > limits.max_bytes:
        raise InvalidRequestError(
            f"{field}: got an image file of {num_bytes} bytes, the limit is {limits.max_bytes}; "
            f"send a smaller one",
            param=field,
        )
    if num_bytes == 0:
        raise InvalidRequestError(f"{field}: got an empty file; send a picture", param=field)
    file.seek(0)
    webp_size = _webp_size(file.read(_HEADER_BYTES))
    # Before Pillow opens it: that takes memory for a whole WebP canvas.
    if webp_size is not None:
        _check_size(webp_size, limits, field)
    file.seek(0)
    try:
        # What the library thinks odd about a file is said by the error, if it matters.
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=FORMATS) as image:
            _check_size(image.size, limits, field)
            # A jpeg may hold a second picture, for depth or stereo, that nobody means.
            if image.format != "MPO" and getattr(image, "is_animated", False):
                raise InvalidRequestError(
                    f"{field}: got an animation; send one picture", param=field
                )
            return _upright_rgb(image)
    except InvalidRequestError:
        raise
    # Pillow has a limit of its own, and looks at it first.
    except Image.DecompressionBombError as error:
        raise InvalidRequestError(
            f"{field}: got an image of too many pixels, the limit is {limits.max_pixels}; "
            f"send a smaller one",
            param=field,
        ) from error
    # Parsers raise whatever a damaged file makes of them.
    except Exception as error:
        raise InvalidRequestError(
            f"{field}: cannot be read as a png, jpeg or webp image ({type(error).__name__})",
            param=field,
        ) from error


def _upright_rgb(image: ImageFile.ImageFile) -> npt.NDArray[np.uint8]:
    key = _transparent_colour(image)
    upright: Image.Image = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits a pixel
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if key is not None:
        upright.info["transparency"] = key
    if upright.has_transparency_data:
        layer = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return np.asarray(upright.convert("RGB"))


def _transparent_colour(image: ImageFile.ImageFile) -> Any:
    """The colour that a picture declares transparent, with as many bits as its pixels will have.

    Pillow reads 16 bits of RGB as 8, and leaves 16 to the colour. None without such a colour.
    """
    key = image.info.get("transparency")
    if key is None or not any("16" in str(tile.args) for tile in image.tile):
        return key
    return key >> 8 if isinstance(key, int) else tuple(level >> 8 for level in key)


def _check_size(size: tuple[int, int], limits: FileLimits, field: str) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise InvalidRequestError(
            f"{field}: got an image of {width}x{height}, the limit is {limits.max_pixels} pixels; "
            f"send a smaller one",
            param=field,
        )
    if max(size) > MAX_ASPECT * min(size):
        raise InvalidRequestError(
            f"{field}: got an image of {width}x{height}; the longer side may be {MAX_ASPECT} "
            f"times the shorter one at most, crop it",
            param=field,
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
