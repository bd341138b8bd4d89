"""Uploaded images: which pass, which are refused, and that a bomb is refused by its header."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from kit.errors import InvalidRequestError
from kit.server.settings import ServerSettings
from kit.server.uploads import check_image

SETTINGS = ServerSettings(name="m", max_image_bytes=200_000, max_image_pixels=100 * 100)


def encode(
    image_format: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: object
) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, "red" if mode != "L" else 200).save(buffer, image_format, **options)
    return buffer.getvalue()


def png_bomb(width: int, height: int) -> bytes:
    """A PNG whose header states any size, with a few bytes of data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def webp_canvas(width: int, height: int) -> bytes:
    """An extended WebP whose header states any canvas."""
    body = b"\x00" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunk = b"VP8X" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def check(data: bytes, settings: ServerSettings = SETTINGS) -> None:
    check_image(io.BytesIO(data), len(data), settings, param="image[]")


def refusal(data: bytes, settings: ServerSettings = SETTINGS) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        check(data, settings)
    assert refused.value.param == "image[]"
    return str(refused.value)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP"])
def test_images_of_the_three_formats_pass(image_format: str, mode: str) -> None:
    mode = "RGB" if image_format == "JPEG" and mode in ("RGBA", "P") else mode
    check(encode(image_format, mode=mode))


@pytest.mark.parametrize("image_format", ["GIF", "BMP", "TIFF", "ICO", "PPM"])
def test_other_formats_are_refused(image_format: str) -> None:
    assert "png, jpeg or webp" in refusal(encode(image_format, (32, 32)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"RIFF\x00\x00\x00\x00WEBP",
        encode("PNG")[:20],
        encode("JPEG")[:20],
        encode("WEBP")[:20],
    ],
)
def test_damaged_files_are_refused(data: bytes) -> None:
    assert "cannot be read" in refusal(data)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP"])
def test_too_many_pixels_are_refused(image_format: str) -> None:
    assert "101x100" in refusal(encode(image_format, (101, 100)))
    check(encode(image_format, (100, 100)))


@pytest.mark.parametrize("lossless", [False, True])
def test_the_size_of_a_plain_webp_is_read_from_its_own_header(lossless: bool) -> None:
    assert "300x40" in refusal(encode("WEBP", (300, 40), lossless=lossless))


@pytest.mark.parametrize(
    ("bomb", "words"),
    [
        (png_bomb(30_000, 30_000), "DecompressionBombError"),
        (png_bomb(9_000, 9_000), "9000x9000"),
        (webp_canvas(16_000, 16_000), "16000x16000"),
    ],
    ids=["png-over-pillows-own-limit", "png", "webp"],
)
def test_a_bomb_is_refused_by_its_header(bomb: bytes, words: str) -> None:
    assert len(bomb) < 2000
    assert words in refusal(bomb, ServerSettings(name="m"))


def test_a_long_file_is_refused_unread() -> None:
    assert "200001 bytes" in refusal(bytes(200_001))
