"""From a chat body to a GenerationRequest: both spellings, conflicts, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kit.errors import InvalidRequestError
from kit.request import GenerationRequest
from kit.server.protocol import ChatCompletionRequest, to_generation_request

MESSAGES = [{"role": "user", "content": "a cat"}]


def parse(**fields: Any) -> tuple[GenerationRequest, list[str]]:
    body = {"messages": MESSAGES, "modalities": ["image"], **fields}
    return to_generation_request(ChatCompletionRequest.model_validate(body))


def test_nested_and_flat_fields_mean_the_same() -> None:
    fields = {"height": 128, "width": 512, "seed": 3, "guidance_scale": 2, "template": "pretrain"}
    assert parse(extra_body=fields) == parse(**fields)
    assert parse(extra_body=fields, **fields) == parse(**fields)


def test_a_conflict_between_the_spellings_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="seed") as refused:
        parse(extra_body={"seed": 1}, seed=2)
    assert refused.value.param == "seed"


def test_content_may_be_text_parts_and_several_user_messages() -> None:
    messages = [
        {"role": "system", "content": "Draw."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    request, _ = parse(messages=messages)
    assert request.prompt == "a\nb\nc"
    assert request.system_prompt == "Draw."


def test_size_agrees_with_height_and_width_or_is_refused() -> None:
    request, _ = parse(size="512x128")
    assert (request.sampling.width, request.sampling.height) == (512, 128)
    assert parse(size="512x128", width=512, height=128)[0] == request
    assert parse(size="auto")[0].sampling.height is None
    with pytest.raises(InvalidRequestError, match="contradicts"):
        parse(size="512x128", width=256)


def test_absent_modalities_are_named_and_unused_fields_too() -> None:
    _, warnings = parse(modalities=None, temperature=0.5, user="me")
    assert [w.split()[0] for w in warnings] == ["modalities", "temperature", "user"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": []}, "modalities"),
        ({"modalities": ["text"]}, "modalities"),
        ({"modalities": ["image", "text"]}, "modalities"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"num_steps": 3}, "num_steps"),
        ({"extra_body": {"trace_path": "x"}}, "trace_path"),
        ({"size": "12x"}, "size"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "x"}]}, "messages"),
        (
            {"messages": [{"role": "system", "content": "a"}, *MESSAGES], "system_prompt": "b"},
            "system_prompt",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "fields", [{"seed": "1"}, {"height": 1.5}, {"num_inference_steps": True}, {"template": "x"}]
)
def test_wrong_types_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse(**fields)


def test_an_image_part_is_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(ValidationError):
        parse(messages=[{"role": "user", "content": [part]}])
