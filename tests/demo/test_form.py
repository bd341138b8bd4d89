"""What the form sends, and what it refuses to send."""

from __future__ import annotations

from typing import Any

import pytest

from kit.demo.form import FieldError, read_fields


def values(**fields: Any) -> list[Any]:
    """What the browser sends, in the order of the form's inputs."""
    blank = {"prompt": "a cat", "size": "auto", "steps": "", "guidance": ""}
    return list((blank | {"seed": "7", "new_seed": True, "count": 1} | fields).values())


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
