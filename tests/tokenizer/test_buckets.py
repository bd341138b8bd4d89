"""Resolution buckets against the reference's tables, and size strings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import CheckpointError, InvalidRequestError
from kit.tokenizer.buckets import (
    EXTRA_SIZES_HW,
    Bucket,
    nearest_bucket,
    parse_size,
    resolution_buckets,
)


@pytest.mark.parametrize("base_size", [256, 512, 1024])
def test_buckets_against_reference_tables(tables: dict[str, Any], base_size: int) -> None:
    group = tables["resolution_groups"][str(base_size)]
    buckets = resolution_buckets(base_size, extended=True)
    assert [[b.height, b.width] for b in buckets] == group["buckets_hw"]
    assert [b.ratio_index for b in buckets] == list(range(37))


@pytest.mark.parametrize("base_size", [256, 512, 1024])
def test_nearest_against_reference_lookups(tables: dict[str, Any], base_size: int) -> None:
    lookups = tables["resolution_groups"][str(base_size)]["lookups"]
    buckets = resolution_buckets(base_size, extended=True)
    assert lookups
    for lookup in lookups:
        found = nearest_bucket(buckets, *lookup["request_hw"])
        assert [found.width, found.height] == lookup["bucket_wh"], lookup
        assert found.ratio_index == lookup["ratio_index"], lookup


@pytest.mark.parametrize("base_size", [256, 320, 512, 768, 1024])
def test_extension_keeps_the_official_indices(base_size: int) -> None:
    plain = resolution_buckets(base_size, extended=False)
    extended = resolution_buckets(base_size, extended=True)
    assert len(plain) == 33
    assert extended[:33] == plain
    assert plain[16] == Bucket(base_size, base_size, 16)


def test_an_extra_size_of_a_known_ratio_is_left_out() -> None:
    buckets = resolution_buckets(288, extended=False)
    known = {b.ratio for b in buckets}
    new = [size for size in EXTRA_SIZES_HW if size[0] / size[1] not in known]
    extended = resolution_buckets(288, extended=True)
    assert [(b.height, b.width) for b in extended[33:]] == new
    assert len(new) < len(EXTRA_SIZES_HW), "base 288 must show the case"


def test_base_that_needs_flooring_gives_multiples_of_16() -> None:
    for bucket in resolution_buckets(320, extended=True):
        assert bucket.height % 16 == bucket.width % 16 == 0


@pytest.mark.parametrize("base_size", [-256, 0, 16, 240, 1000])
def test_base_size_outside_the_rule_is_refused(base_size: int) -> None:
    with pytest.raises(CheckpointError, match=f"image_base_size: got {base_size}"):
        resolution_buckets(base_size, extended=False)


def test_nearest_takes_the_first_of_equals() -> None:
    buckets = (Bucket(100, 200, 0), Bucket(300, 200, 1))
    assert nearest_bucket(buckets, 200, 200).ratio_index == 0
    assert nearest_bucket(buckets[::-1], 200, 200).ratio_index == 1


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_nearest_is_a_minimum(height: int, width: int) -> None:
    buckets = resolution_buckets(1024, extended=True)
    found = nearest_bucket(buckets, height, width)
    distances = [abs(b.height / b.width - height / width) for b in buckets]
    assert distances.index(min(distances)) == found.ratio_index


@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_size_string_round_trip(height: int, width: int) -> None:
    assert parse_size(str(Bucket(height, width, 0))) == (width, height)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "12x",
        "x12",
        "0x512",
        "512x0",
        "-1x512",
        "512X512",
        "512*512",
        "512x512x3",
        "1.5x2",
        "512x512\n",
        " 512x512",
        "auto",
        "1024",
        chr(0x661) + "x" + chr(0x662),
        "1" * 5000 + "x1",
        "1234567x1",
    ],
)
def test_malformed_size_string_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="WIDTHxHEIGHT") as caught:
        parse_size(text)
    assert caught.value.param == "size"
    assert len(str(caught.value)) < 200
