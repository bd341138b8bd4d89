"""Files of reference images: what they decode to, and that a bomb is refused by its header."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from kit.engine.reference_files import MAX_ASPECT, FileLimits, decode_image
from kit.errors import InvalidRequestError

LIMITS = FileLimits(max_bytes=200_000, max_pixels=100 * 100)
ORIENTATION = 0x0112


def encode(
    image_format: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: object
) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, "red" if mode != "L" else 200).save(buffer, image_format, **options)
    return buffer.getvalue()


def png(width: int, height: int, header: str, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of `chunks` whose header states any size; `header`: bits and kind of its colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    bits, kind = {"grey16": (16, 0), "rgb16": (16, 2), "rgb8": (8, 2)}[header]
    start = (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    written = (chunk(*one) for one in (start, *chunks, (b"IEND", b"")))
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def png_bomb(width: int, height: int) -> bytes:
    """A PNG whose header states any size, with a few bytes of data."""
    return png(width, height, "rgb8", (b"IDAT", zlib.compress(bytes(1 << 20), 9)))


def webp_canvas(width: int, height: int) -> bytes:
    """An extended WebP whose header states any canvas."""
    body = b"\x00" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunk = b"VP8X" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def check(data: bytes, limits: FileLimits = LIMITS) -> npt.NDArray[np.uint8]:
    return decode_image(io.BytesIO(data), "image[]", limits)


def refusal(data: bytes, limits: FileLimits = LIMITS) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        check(data, limits)
    assert refused.value.param == "image[]"
    return str(refused.value)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP"])
def test_images_of_the_three_formats_pass(image_format: str, mode: str) -> None:
    mode = "RGB" if image_format == "JPEG" and mode in ("RGBA", "P") else mode
    assert check(encode(image_format, mode=mode)).shape == (30, 40, 3)


@pytest.mark.parametrize("image_format", ["GIF", "BMP", "TIFF", "ICO", "PPM"])
def test_other_formats_are_refused(image_format: str) -> None:
    assert "png, jpeg or webp" in refusal(encode(image_format, (32, 32)))


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"RIFF\x00\x00\x00\x00WEBP",
        encode("PNG")[:20],
        encode("JPEG")[:20],
        encode("WEBP")[:20],
        encode("PNG", (90, 90))[:-40],
        encode("JPEG", (90, 90))[:-40],
        encode("WEBP", (90, 90))[:-40],
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
        (png_bomb(30_000, 30_000), f"too many pixels, the limit is {1 << 26}"),
        (png_bomb(9_000, 9_000), "9000x9000"),
        (webp_canvas(16_000, 16_000), "16000x16000"),
    ],
    ids=["png-over-pillows-own-limit", "png", "webp"],
)
def test_a_bomb_is_refused_by_its_header(bomb: bytes, words: str) -> None:
    assert len(bomb) < 2000
    assert words in refusal(bomb, FileLimits())


def test_an_empty_file_is_called_empty() -> None:
    assert "got an empty file" in refusal(b"")


def test_a_long_file_is_refused_unread() -> None:
    assert "200001 bytes" in refusal(bytes(200_001))


def halves(mode: str = "RGB") -> Image.Image:
    """Left half red, right half blue, 40 x 20."""
    picture = Image.new("RGB", (40, 20), "red")
    picture.paste("blue", (20, 0, 40, 20))
    return picture.convert(mode)


def saved(picture: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "size", "first"),
    [(1, (20, 40), "red"), (3, (20, 40), "blue"), (6, (40, 20), "red"), (8, (40, 20), "blue")],
)
def test_a_picture_is_turned_upright(
    image_format: str, orientation: int, size: tuple[int, int], first: str
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    pixels = check(saved(halves(), image_format, exif=exif))
    assert pixels.shape[:2] == size
    red, _, blue = (int(value) for value in pixels[2, 2])
    assert (red > 200, blue > 200) == (first == "red", first == "blue")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_what_is_transparent_lies_on_white(mode: str) -> None:
    picture = Image.new("RGBA", (40, 20), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (20, 0, 40, 20))
    pixels = check(saved(picture.convert(mode if mode != "PA" else "RGBA")))
    assert pixels[10, 5].tolist() == [255, 255, 255]
    assert pixels[10, 35].tolist() == [0, 0, 0]


def test_half_transparent_is_half_white() -> None:
    picture = Image.new("RGBA", (8, 8), (0, 0, 0, 127))
    assert check(saved(picture))[0, 0].tolist() == [128, 128, 128]


def test_a_palette_may_have_a_transparent_colour() -> None:
    picture = halves().quantize(2)
    index = picture.getpixel((0, 0))
    pixels = check(saved(picture, transparency=index))
    assert pixels[10, 5].tolist() == [255, 255, 255]
    assert pixels[10, 35].tolist() == [0, 0, 255]


def test_sixteen_bits_a_pixel_keep_their_upper_ones() -> None:
    grey = Image.fromarray(np.full((8, 8), 0x80FF, np.uint16))
    assert check(saved(grey))[0, 0].tolist() == [0x80] * 3


@pytest.mark.parametrize("header", ["grey16", "rgb16"])
def test_sixteen_bits_may_have_a_transparent_colour(header: str) -> None:
    channels = 1 if header == "grey16" else 3
    key, other = struct.pack(">H", 0x2001) * channels, struct.pack(">H", 0x8001) * channels
    data = zlib.compress(b"\0" + key + other)
    pixels = check(png(2, 1, header, (b"tRNS", key), (b"IDAT", data)))
    assert pixels.tolist() == [[[255] * 3, [0x80] * 3]]


@pytest.mark.parametrize("image_format", ["PNG", "WEBP"])
def test_an_animation_is_refused(image_format: str) -> None:
    frames = [halves(), halves().rotate(180)]
    data = saved(frames[0], image_format, save_all=True, append_images=frames[1:])
    assert "an animation" in refusal(data)


def test_a_jpeg_with_a_second_picture_is_its_first() -> None:
    data = saved(halves(), "MPO", save_all=True, append_images=[Image.new("RGB", (40, 20))])
    assert check(data)[10, 5, 0] > 200


def test_a_stripe_is_refused() -> None:
    check(encode("PNG", (MAX_ASPECT, 1)))
    for size in ((MAX_ASPECT + 1, 1), (1, MAX_ASPECT + 1)):
        assert "the longer side may be 16 times" in refusal(encode("PNG", size))


@pytest.mark.parametrize("flip", [40, 60])
def test_a_damaged_picture_is_refused(flip: int) -> None:
    data = bytearray(encode("PNG", (64, 64)))
    data[-flip] ^= 0xFF
    assert "cannot be read" in refusal(bytes(data))
