"""What the form sends, and what it refuses to send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from demo_pools import size_of

from kit.demo.answers import Info
from kit.demo.form import FieldError, fill, read_fields, read_images


def values(**fields: Any) -> list[Any]:
    """What the browser sends, in the order of the form's inputs."""
    blank: dict[str, Any] = {"prompt": "a cat", "size": "auto", "steps": "", "guidance": ""}
    blank |= {"seed": "7", "new_seed": True, "images": None, "count": 1}
    return list((blank | fields).values())


def test_a_blank_field_is_left_to_the_server() -> None:
    assert read_fields(values()) == {"prompt": "a cat", "size": "auto", "n": 1}


def test_numbers_arrive_as_they_were_written() -> None:
    read = read_fields(
        values(steps=" 20 ", guidance="2.5", new_seed=False, seed="9223372036854775807")
    )
    assert (read["num_inference_steps"], read["guidance_scale"]) == (20, 2.5)
    assert isinstance(read["num_inference_steps"], int)
    assert read["seed"] == 9223372036854775807
    # Out of range, for the server to refuse.
    assert read_fields(values(steps="2.5", guidance="-1"))["num_inference_steps"] == 2.5


@pytest.mark.parametrize("text", ["x", "1e999", "nan", "1,5"])
@pytest.mark.parametrize("field", ["steps", "guidance", "seed"])
def test_what_is_no_number_is_said_at_its_field(field: str, text: str) -> None:
    with pytest.raises(FieldError) as raised:
        read_fields(values(new_seed=False, **{field: text}))
    assert raised.value.field == field
    assert repr(text) in raised.value.text


def test_images_are_read_in_their_order(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b.png", "a.png")]
    for path in paths:
        path.touch()
    shown = [(str(path), None) for path in paths]
    assert read_images(values(images=shown)) == tuple(paths)
    assert read_images(values()) == read_images(values(images=[])) == ()
    assert read_fields(values(images=shown)) == read_fields(values()), "they stand beside the body"
    paths[1].unlink()
    with pytest.raises(FieldError, match=r"this page has a.png no more; choose it again") as raised:
        read_images(values(images=shown))
    assert raised.value.field == "images"


def info_of(steps: int, guidance: float, *sides: int) -> Info:
    return Info(
        name="any",
        fingerprint="f",
        mode="paged_scheduler",
        sizes=tuple(size_of(side) for side in sides),
        page_size=4,
        page_bytes=512,
        pool_bytes=4096,
        defaults={
            "width": 256, "height": 256, "num_inference_steps": steps, "guidance_scale": guidance,
        },
        limits={},
        cfg_distilled=False,
        reference_refusal=None,
        refused={},
        raw={"model": {"version": "any"}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "typed", "shown"),
    [
        (None, ("auto", "", ""), ("auto", "30", "2.5")),
        # Left as they were: the new server's defaults.
        (info_of(20, 5.0, 2, 4), ("32x32", "20", "5"), ("32x32", "30", "2.5")),
        # Changed, cleared as well: they stay. A size that is offered no more does not.
        (info_of(20, 5.0, 2, 4), ("64x64", "3", ""), ("auto", "3", "")),
    ],
)
def test_defaults_fill_what_the_user_left_alone(
    before: Info | None, typed: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert fill(info_of(30, 2.5, 2), before, typed) == shown
