"""A replay record goes to JSON and back unchanged, and nothing else is read as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_records import noise, sample_record, with_prompt

from kit.engine.references import pixel_hash
from kit.engine.replay import (
    FORMAT,
    MAX_RECORD_BYTES,
    record_from_json,
    record_to_dict,
    record_to_json,
)
from kit.errors import RecordError

RECORD = sample_record(noise())


@settings(deadline=None)
@given(
    prompt=st.text(),
    guidance=st.floats(0, 100),
    seed=st.integers(0, 2**63 - 1),
    ascii_only=st.booleans(),
)
def test_a_record_survives_its_json(
    prompt: str, guidance: float, seed: int, ascii_only: bool
) -> None:
    record = with_prompt(RECORD, prompt)
    sampling = replace(record.request.sampling, guidance_scale=guidance, seed=seed)
    record = replace(record, request=replace(record.request, sampling=sampling))
    text = record_to_json(record, ascii_only=ascii_only)
    assert text.isascii() or not ascii_only
    assert "\n" not in text
    assert record_from_json(text) == record == record_from_json(text.encode())


def test_equal_records_give_equal_text() -> None:
    assert record_to_json(sample_record(noise())) == record_to_json(RECORD)
    assert json.loads(record_to_json(RECORD)) == record_to_dict(RECORD)


def edited(edit: Callable[[dict[str, Any]], object]) -> str:
    document: dict[str, Any] = json.loads(record_to_json(RECORD))
    edit(document)
    return json.dumps(document)


def deep(document: dict[str, Any], path: str, value: object) -> None:
    *parents, leaf = path.split(".")
    for name in parents:
        document = document[name]
    document[leaf] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("record.request.prompt", 5),
        ("record.request.prompt", None),
        ("record.request.template", "other"),
        ("record.request.sampling.seed", "7"),
        ("record.request.sampling.seed", True),
        ("record.request.sampling.reference_seed", "7"),
        ("record.request.sampling.height", 1.5),
        ("record.request.sampling.guidance_scale", "5"),
        ("record.request.sampling.steps", 5),
        ("record.request.trace_path", "/etc/x"),
        ("record.deployment.page_size", "32"),
        ("record.deployment.settings.dtype", ["float32"]),
        ("record.deployment.settings", []),
        ("record.platform.num_threads", None),
        ("record.platform.versions.torch", 2),
        ("record.image", None),
        ("record.extra", 1),
        ("more", 1),
    ],
)
def test_wrong_values_are_named(path: str, value: object) -> None:
    with pytest.raises(RecordError) as caught:
        record_from_json(edited(lambda document: deep(document, path, value)))
    assert path in str(caught.value)


def test_a_missing_fact_is_named() -> None:
    with pytest.raises(RecordError, match=r"record\.request\.sampling\.seed"):
        record_from_json(edited(lambda d: d["record"]["request"]["sampling"].pop("seed")))


def test_infinity_is_no_number() -> None:
    text = record_to_json(RECORD).replace('"guidance_scale":5.0', '"guidance_scale":1e999')
    with pytest.raises(RecordError, match="guidance_scale"):
        record_from_json(text)


def test_another_format_says_which_kit_to_use() -> None:
    with pytest.raises(RecordError, match=rf"this kit reads the format {FORMAT}"):
        record_from_json(edited(lambda document: document.update(format="kit.replay/4")))


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", "\x00", "[" * 100_000, '"\\ud800"', b"\xff"]
)
def test_what_is_no_record(text: str | bytes) -> None:
    with pytest.raises(RecordError, match="replay record"):
        record_from_json(text)


@pytest.mark.parametrize("kind", [str, str.encode])
def test_an_absurd_length_is_refused_unread(kind: Callable[[str], Any]) -> None:
    with pytest.raises(RecordError, match=f"has {MAX_RECORD_BYTES + 1} bytes"):
        record_from_json(kind("x" * (MAX_RECORD_BYTES + 1)))


def test_a_message_shows_little_of_a_hostile_value() -> None:
    hostile = "\x1b[31m" + "x" * 10_000
    with pytest.raises(RecordError) as caught:
        record_from_json(edited(lambda d: deep(d, "record.request.template", hostile)))
    assert len(str(caught.value)) < 500
    assert "\x1b" not in str(caught.value)


def test_the_pixel_hash_follows_every_pixel_but_no_layout() -> None:
    image = noise()
    changed = image.copy()
    changed[-1, -1, -1] ^= 1
    assert pixel_hash(changed) != pixel_hash(image)
    assert pixel_hash(image[:, ::-1]) != pixel_hash(image)
    assert pixel_hash(image[:, ::-1][:, ::-1]) == pixel_hash(image)
