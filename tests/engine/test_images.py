"""Files of pictures: the same bytes again, the same pixels with a record, nothing hostile read."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from replay_records import noise, sample_record, with_prompt

from kit.engine.images import (
    IMAGE_FORMATS,
    PNG_KEYWORD,
    ImageFormat,
    encode_image,
    output_format,
    read_picture,
)
from kit.engine.reference_files import DEFAULT_LIMITS
from kit.engine.replay import MAX_RECORD_BYTES, record_to_json
from kit.errors import ConfigError, RecordError

IMAGE = noise()
RECORD = sample_record(IMAGE, "a red vase, 花瓶 🏺")


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


@pytest.mark.parametrize("image_format", IMAGE_FORMATS)
def test_a_viewer_opens_it_and_the_bytes_repeat(image_format: ImageFormat) -> None:
    encoded = encode_image(IMAGE, image_format, record=RECORD)
    image = opened(encoded.data)
    assert image.format == image_format.upper()
    assert (image.mode, image.size) == ("RGB", (80, 48))
    assert encoded.media_type == f"image/{image_format}"
    assert encoded.has_record
    assert encode_image(IMAGE.copy(), image_format, record=RECORD) == encoded


@pytest.mark.parametrize("image_format", IMAGE_FORMATS)
def test_the_record_changes_no_pixel(image_format: ImageFormat) -> None:
    bare = encode_image(IMAGE, image_format)
    assert not bare.has_record
    with_record = encode_image(IMAGE, image_format, record=RECORD)
    assert opened(bare.data).tobytes() == opened(with_record.data).tobytes()


def test_png_loses_nothing() -> None:
    assert opened(encode_image(IMAGE).data).tobytes() == IMAGE.tobytes()


@pytest.mark.parametrize("image_format", IMAGE_FORMATS)
def test_the_record_comes_back(image_format: ImageFormat, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(encode_image(IMAGE, image_format, record=RECORD).data)
    picture = read_picture(path)
    assert picture.record == RECORD
    assert picture.image_format == image_format
    assert picture.pixels.shape == IMAGE.shape
    assert image_format != "png" or (picture.pixels == IMAGE).all()


def test_in_a_png_the_record_is_plain_text_of_its_own_keyword() -> None:
    image = opened(encode_image(IMAGE, record=RECORD).data)
    assert isinstance(image.text, dict)  # type: ignore[attr-defined]
    assert image.text == {PNG_KEYWORD: record_to_json(RECORD)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("image_format", ["jpeg", "webp"])
def test_quality_trades_bytes_for_closeness(image_format: ImageFormat) -> None:
    smooth = np.indices((64, 64)).sum(axis=0)[..., None].repeat(3, axis=2).astype(np.uint8)
    sizes, errors = [], []
    for quality in (0, 50, 100):
        data = encode_image(smooth, image_format, quality=quality).data
        sizes.append(len(data))
        got = np.asarray(opened(data)).astype(int)
        errors.append(int(np.abs(got - smooth).sum()))
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1]


@pytest.mark.parametrize("image_format", IMAGE_FORMATS)
def test_a_record_too_long_is_left_out_and_said(image_format: ImageFormat, tmp_path: Path) -> None:
    base = len(record_to_json(with_prompt(RECORD, ""), ascii_only=True))
    limit = 65_000 if image_format == "jpeg" else MAX_RECORD_BYTES
    path = tmp_path / "picture"
    fits = with_prompt(RECORD, "x" * (limit - base))
    path.write_bytes(encode_image(IMAGE, image_format, record=fits).data)
    assert read_picture(path).record == fits
    longer = with_prompt(RECORD, "x" * (limit - base + 1))
    encoded = encode_image(IMAGE, image_format, record=longer)
    assert not encoded.has_record
    assert encoded == encode_image(IMAGE, image_format)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("a.png", "png"), ("a", "png"), ("a.JPG", "jpeg"), ("a.jpeg", "jpeg"), ("a.b.webp", "webp")],
)
def test_the_suffix_names_the_format(name: str, wanted: str) -> None:
    assert output_format("--output", Path(name)) == wanted


@pytest.mark.parametrize("name", ["a.gif", "a.png.txt", "a.svg"])
def test_an_unknown_suffix_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--output: .*\.webp"):
        output_format("--output", Path(name))


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        read_picture(path)
    return str(caught.value)


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "picture"
    path.write_bytes(data)
    return path


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*chunks: bytes, width: int = 80, height: int = 48) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


def itxt(text: bytes, *, is_compressed: bool = False) -> bytes:
    head = PNG_KEYWORD.encode() + b"\0" + bytes([is_compressed, 0]) + b"\0\0"
    return chunk(b"iTXt", head + (zlib.compress(text) if is_compressed else text))


def test_a_picture_without_a_record_says_where_one_would_be(tmp_path: Path) -> None:
    assert "png carries no replay record" in refusal(written(tmp_path, encode_image(IMAGE).data))
    jpeg = encode_image(IMAGE, "jpeg").data
    assert "65000 bytes" in refusal(written(tmp_path, jpeg))


def test_no_picture(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.png")
    assert "directory" in refusal(tmp_path)
    for data in (b"", b"text", b"GIF89a" + bytes(100), b"\x89PNG\r\n\x1a\n"):
        assert "cannot be read as a png, jpeg or webp" in refusal(written(tmp_path, data))


def test_a_claim_of_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    side = 1 << 15
    assert side * side > DEFAULT_LIMITS.max_pixels
    assert "pixels" in refusal(written(tmp_path, png(itxt(b"{}"), width=side, height=side)))


def test_a_record_that_unpacks_to_megabytes_is_refused(tmp_path: Path) -> None:
    refusal(written(tmp_path, png(itxt(b" " * (64 << 20), is_compressed=True))))


def test_the_record_is_checked_before_the_pixels(tmp_path: Path) -> None:
    assert "replay record" in refusal(written(tmp_path, png(itxt(b"{}"))))
    text = record_to_json(RECORD).encode()
    assert "cannot be read" in refusal(written(tmp_path, png(itxt(text))))


def test_a_picture_of_another_size_than_its_record(tmp_path: Path) -> None:
    data = encode_image(IMAGE[:, :40], record=RECORD).data
    assert "40x48, its record is of one that was 80x48" in refusal(written(tmp_path, data))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(IMAGE_FORMATS), st.data())
def test_no_damage_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, image_format: ImageFormat, data: st.DataObject
) -> None:
    content = bytearray(encode_image(IMAGE, image_format, record=RECORD).data)
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=6)):
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "picture"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        picture = read_picture(path)
    except RecordError:
        return
    assert picture.pixels.shape == (48, 80, 3)
