"""From a body to the engine's requests: both spellings, n, seeds, conflicts, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from replay_records import noise

from kit.engine.preprocess import MAX_SEED
from kit.errors import InvalidRequestError
from kit.request import RecordedImage, ReferenceImage
from kit.server.fields import MAX_PROMPT_CHARS, MAX_TEXT_CHARS
from kit.server.normalise import (
    Defaults,
    PublicRequest,
    image_seed,
    public_request,
    with_images,
)
from kit.server.protocol import ChatCompletionBody, ImageGenerationBody

DEFAULTS = Defaults(seed=None, timeout_s=None)


def parse(defaults: Defaults = DEFAULTS, **fields: Any) -> PublicRequest:
    body = ImageGenerationBody.model_validate({"prompt": "a cat", **fields})
    return public_request(body, prompt=body.prompt, defaults=defaults)


def parse_chat(**fields: Any) -> PublicRequest:
    messages = [{"role": "user", "content": "a cat"}]
    body = ChatCompletionBody.model_validate({"messages": messages, **fields})
    return public_request(body, prompt="a cat", defaults=DEFAULTS)


def without_id(public: PublicRequest) -> tuple[Any, ...]:
    children = [
        (c.prompt, c.sampling, c.reference_seed, c.system_prompt, c.cot_text, c.template)
        for c in public.children
    ]
    return children, public.output, public.stream, public.warnings


# A value of each field that no other value of the same field equals.
FIELDS: dict[str, Any] = {
    "n": 2,
    "num_outputs_per_prompt": 2,
    "size": "512x128",
    "height": 128,
    "width": 512,
    "num_inference_steps": 3,
    "guidance_scale": 2,
    "flow_shift": 1.5,
    "seed": 7,
    "reference_seed": 3,
    "template": "instruct",
    "system_prompt": "Draw.",
    "use_system_prompt": "custom",
    "cot_text": "think",
    "output_format": "webp",
    "output_compression": 40,
    "timeout_s": 2.5,
    "negative_prompt": "",
    "generator_device": "cpu",
}


def test_nested_and_flat_fields_mean_the_same() -> None:
    flat, nested = parse(**FIELDS), parse(extra_body=FIELDS)
    assert without_id(flat) == without_id(nested) == without_id(parse(**FIELDS, extra_body=FIELDS))
    [first, second] = flat.children
    assert (first.sampling.width, first.sampling.height, first.timeout_s) == (512, 128, 2.5)
    assert (first.sampling.seed, second.sampling.seed) == (7, 8)
    assert (flat.output.image_format, flat.output.quality) == ("webp", 40)


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - {"negative_prompt", "generator_device"}))
def test_a_conflict_between_the_spellings_is_refused(name: str) -> None:
    other = f"{FIELDS[name]}x" if isinstance(FIELDS[name], str) else FIELDS[name] + 1
    with pytest.raises(InvalidRequestError, match="extra_body") as refused:
        parse(**{name: FIELDS[name]}, extra_body={name: other})
    assert refused.value.param == name


def test_null_is_as_good_as_absent() -> None:
    nulls: dict[str, Any] = dict.fromkeys(FIELDS)
    assert without_id(parse(**nulls, extra_body=nulls)) == without_id(parse())
    assert parse(seed=None, extra_body={"seed": 3}).children[0].sampling.seed == 3


def test_every_endpoint_makes_the_same_requests() -> None:
    assert without_id(parse(**FIELDS)) == without_id(parse_chat(**FIELDS))


@pytest.mark.parametrize("seed", [0, 1234, MAX_SEED - 1, MAX_SEED])
def test_seeds_count_on_and_wrap(seed: int) -> None:
    seeds = [child.sampling.seed for child in parse(seed=seed, n=3).children]
    assert seeds == [(seed + i) % 2**63 for i in range(3)]
    for index, one in enumerate(seeds):
        assert one == image_seed(seed, index)


def test_a_seed_out_of_range_is_left_for_its_own_refusal() -> None:
    assert [c.sampling.seed for c in parse(seed=MAX_SEED + 5, n=2).children] == [MAX_SEED + 5] * 2


def test_pictures_without_a_seed_get_neighbours_of_one_that_is_drawn() -> None:
    first, second = parse(n=2).children
    assert first.sampling.seed is not None
    assert second.sampling.seed == first.sampling.seed + 1
    assert first.sampling.seed != parse(n=2).children[0].sampling.seed
    assert parse().children[0].sampling.seed is None, "the engine draws for a single picture"
    deployed = parse(Defaults(seed=40, timeout_s=None), n=2).children
    assert [child.sampling.seed for child in deployed] == [40, 41]


def test_children_have_ids_of_their_own() -> None:
    public = parse(n=3)
    assert [child.request_id for child in public.children] == [
        f"{public.request_id}-{i}" for i in range(3)
    ]
    assert {child.parent_id for child in public.children} == {public.request_id}
    [alone] = parse().children
    assert alone.request_id is not None
    assert alone.parent_id is None


def reference() -> ReferenceImage:
    pixels = noise()
    return ReferenceImage(RecordedImage(48, 80, ""), pixels, pixels)


@pytest.mark.parametrize(
    ("fields", "seed"),
    [
        ({"n": 2, "seed": MAX_SEED}, MAX_SEED),
        ({"n": 2, "seed": 7, "reference_seed": 0}, 0),
        ({"n": 2, "reference_seed": 5}, 5),
        ({"seed": 7}, None),
        ({}, None),
        ({"seed": 7, "reference_seed": 5}, 5),
    ],
)
def test_pictures_of_one_request_draw_their_references_with_one_seed(
    fields: dict[str, Any], seed: int | None
) -> None:
    """None: a lone picture's own, which the engine may still have to draw."""
    children = with_images(parse(**fields), (reference(),)).children
    assert [child.reference_seed for child in children] == [seed] * len(children)
    assert all(child.images == (reference(),) for child in children)


def test_references_of_pictures_without_a_seed_have_that_of_the_first() -> None:
    first, second = with_images(parse(n=2), (reference(),)).children
    assert first.reference_seed == second.reference_seed == first.sampling.seed


def test_without_images_only_a_named_reference_seed_is_left_to_be_refused() -> None:
    assert {c.reference_seed for c in with_images(parse(n=2, seed=7), ()).children} == {None}
    named = with_images(parse(n=2, reference_seed=7), ())
    assert {child.reference_seed for child in named.children} == {7}


def test_a_deadline_comes_from_the_request_or_else_from_the_server() -> None:
    server = Defaults(seed=None, timeout_s=60.0)
    assert parse(server).children[0].timeout_s == 60.0
    assert parse(server, timeout_s=2).children[0].timeout_s == 2
    assert parse().children[0].timeout_s is None


def test_size_agrees_with_height_and_width_or_is_refused() -> None:
    for fields in ({"size": "512x128"}, {"size": "512x128", "width": 512, "height": 128}):
        sampling = parse(**fields).children[0].sampling
        assert (sampling.width, sampling.height) == (512, 128)
    assert parse(size="auto").children[0].sampling.height is None
    assert parse(size="auto", height=128, width=512).children[0].sampling.height == 128
    with pytest.raises(InvalidRequestError, match="contradicts") as refused:
        parse(size="512x128", width=256)
    assert refused.value.param == "size"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 0}),
    ("n", {"n": 11}),
    ("n", {"n": 2, "num_outputs_per_prompt": 3}),
    ("size", {"size": "12x"}),
    ("size", {"size": ""}),
    ("size", {"size": "100000000x10000"}),
    ("output_format", {"output_format": "gif"}),
    ("output_format", {"output_format": "svg"}),
    ("output_compression", {"output_format": "jpeg", "output_compression": 101}),
    ("output_compression", {"output_compression": 50}),
    ("partial_images", {"partial_images": 4, "stream": True}),
    ("partial_images", {"partial_images": 1}),
    ("response_format", {"response_format": "url"}),
    ("response_format", {"response_format": "file"}),
    ("quality", {"quality": "high"}),
    ("background", {"background": "transparent"}),
    ("style", {"style": "vivid"}),
    ("complexity", {"complexity": "low"}),
    ("svg", {"svg": {"model": "x"}}),
    ("negative_prompt", {"negative_prompt": "blurry"}),
    ("lora", {"lora": "/etc/passwd"}),
    ("lora", {"extra_body": {"lora": {"name": "x"}}}),
    ("strength", {"strength": 0.5}),
    ("true_cfg_scale", {"true_cfg_scale": 4.0}),
    ("num_frames", {"num_frames": True}),
    ("bot_task", {"bot_task": "think"}),
    ("use_system_prompt", {"use_system_prompt": "en_vanilla"}),
    ("use_system_prompt", {"use_system_prompt": "none", "system_prompt": "x"}),
    ("system_prompt", {"use_system_prompt": "custom"}),
    ("prompt", {"prompt": "x" * (MAX_PROMPT_CHARS + 1)}),
    ("user", {"user": "half \ud800"}),
    ("safety_identifier", {"safety_identifier": "\udfff"}),
    ("safety_identifier", {"safety_identifier": "x" * 513}),
    ("cot_text", {"cot_text": "x" * (MAX_TEXT_CHARS + 1)}),
    ("system_prompt", {"system_prompt": "x" * (MAX_TEXT_CHARS + 1)}),
]


@pytest.mark.parametrize(("param", "fields"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_honoured_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert param in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quality", "auto"),
        ("quality", "standard"),
        ("background", "opaque"),
        ("moderation", "low"),
        ("negative_prompt", ""),
        ("true_cfg_scale", 1),
        ("true_cfg_scale", 1.0),
        ("bot_task", "image"),
        ("vae_use_tiling", False),
        ("num_frames", 1),
        ("lora", {}),
    ],
)
def test_neutral_values_pass_and_are_named(name: str, value: Any) -> None:
    [warning] = parse(**{name: value}).warnings
    assert warning.startswith(f"{name}=")


def test_openais_fields_without_effect_are_named() -> None:
    fields = {"temperature": 0.5, "max_tokens": 10, "stop": ["x"], "tools": []}
    warnings = parse_chat(**fields).warnings
    assert {warning.split("=")[0].split()[0] for warning in warnings} == fields.keys()
    for name, value in {"tools": [{}], "response_format": {"type": "json_object"}}.items():
        with pytest.raises(InvalidRequestError, match=name):
            parse_chat(**{name: value})


def test_png_takes_the_quality_that_changes_nothing() -> None:
    output = parse(output_compression=100).output
    assert (output.image_format, output.quality) == ("png", None)


def test_a_label_of_the_user_is_kept() -> None:
    assert parse(user="u").safety_identifier == "u"
    assert parse(user="u", safety_identifier="s").safety_identifier == "s"
    assert parse(user="").safety_identifier is None


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": "1"},
        {"seed": 1.0},
        {"height": 1.5},
        {"num_inference_steps": True},
        {"guidance_scale": "2"},
        {"stream": "true"},
        {"stream": 1},
        {"prompt": 3},
        {"extra_body": {"extra_body": {}}},
        {"extra_body": {"prompt": "x"}},
        {"trace_path": "x"},
        {"prompt": None},
    ],
    ids=str,
)
def test_wrong_types_and_unknown_names_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse(**fields)
