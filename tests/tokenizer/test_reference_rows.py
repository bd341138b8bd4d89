"""Rows with reference images against the recorded cases of the reference implementation."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from golden_cases import REFERENCE_CASE_NAMES, GoldenCase, load_case
from safetensors import safe_open

from kit.attention.oracle import layout_mask
from kit.errors import InvalidRequestError
from kit.modelspec.config import ModelConfig, load_model_config
from kit.tokenizer.buckets import Bucket
from kit.tokenizer.layout import Layout, Rows, positions_yx
from kit.tokenizer.references import max_references, num_reference_tokens
from kit.tokenizer.template import ReferenceShape, build_rows, supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

SQUARE = ReferenceShape(Bucket(256, 256, 16), (8, 8))
WIDE = ReferenceShape(Bucket(176, 336, 11), (5, 10))
SHAPES = {"ti2i_ref1_landscape": (SQUARE,), "ti2i_ref2_square": (SQUARE, WIDE)}


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path, model: ModelConfig) -> Tokenizer:
    return Tokenizer.from_folder(checkpoint, model)


def rows_for(tokenizer: Tokenizer, model: ModelConfig, **changes: Any) -> Rows:
    options: dict[str, Any] = {
        "prompt": "a cat",
        "system_prompt": None,
        "cot_text": None,
        "template": "instruct",
        "height": 256,
        "width": 256,
        "num_rows": 2,
        "drop_think": False,
        "references": (SQUARE,),
    }
    return build_rows(tokenizer, model, **(options | changes))


def case_rows(case: GoldenCase, tokenizer: Tokenizer, model: ModelConfig) -> Rows:
    inputs = case.inputs
    height, width = inputs["image_size_hw"]
    return rows_for(
        tokenizer,
        model,
        prompt=inputs["prompt"],
        system_prompt=inputs["system_prompt"],
        height=height,
        width=width,
        references=SHAPES[case.name],
    )


def mask_of(layout: Layout) -> npt.NDArray[np.bool_]:
    mask = np.tril(np.ones((layout.seq_len, layout.seq_len), dtype=bool))
    for first, last in [
        *((ref.timestep + 1, ref.end) for ref in layout.references),
        (layout.image_span.start, layout.image_span.end),
    ]:
        mask[first:last, first:last] = True
    return mask


@pytest.mark.parametrize("name", REFERENCE_CASE_NAMES)
def test_rows_against_reference(name: str, tokenizer: Tokenizer, model: ModelConfig) -> None:
    case = load_case(name)
    rows = case_rows(case, tokenizer, model)
    layout = rows.layout
    with safe_open(case.tensors_path, "np") as file:
        wanted = {n: file.get_tensor(n) for n in file.keys() if not n.startswith("noise")}  # noqa: SIM118
    np.testing.assert_array_equal(np.array(rows.token_ids), wanted["input_ids"])
    np.testing.assert_array_equal(positions_yx(layout), wanted["positions_yx"][0])
    mask = mask_of(layout)
    packed = np.packbits(mask, axis=-1).tobytes()
    assert hashlib.sha256(packed).hexdigest() == case.inputs["attention_mask_packed_sha256"]
    length = layout.kv_len
    np.testing.assert_array_equal(layout_mask(layout).numpy(), mask[:length, :length])

    latents, patches = (np.zeros(layout.seq_len, dtype=np.uint8) for _ in range(2))
    for ref in layout.references:
        latents[ref.latents.start : ref.latents.end] = 1
        patches[ref.patches.start : ref.end] = 1
    np.testing.assert_array_equal(latents, wanted["cond_vae_image_mask"][0])
    np.testing.assert_array_equal(patches, wanted["cond_vit_image_mask"][0])
    timesteps = [ref.timestep for ref in layout.references]
    assert timesteps == wanted["cond_timestep_index"][0].tolist()
    later = list(range(layout.prefix_len, layout.kv_len))
    assert later == wanted["later_step_position_ids"][0].tolist()
    spans = [[ref.start, ref.end] for ref in layout.references]
    assert spans == case.inputs["joint_image_slices"][0]


def test_both_rows_agree_up_to_the_prompt(tokenizer: Tokenizer, model: ModelConfig) -> None:
    rows = rows_for(tokenizer, model, system_prompt="Edit.", references=(SQUARE, WIDE))
    first, second = rows.token_ids
    end = rows.layout.references[-1].end + 1
    assert first[:end] == second[:end]
    assert first[end] != second[end] == tokenizer.special.cfg


def test_the_order_of_references_is_theirs(tokenizer: Tokenizer, model: ModelConfig) -> None:
    one, other = (
        rows_for(tokenizer, model, references=shapes).layout.references
        for shapes in ((SQUARE, WIDE), (WIDE, SQUARE))
    )
    assert [ref.latent_grid for ref in one] == [(16, 16), (11, 21)]
    assert [ref.latent_grid for ref in other] == [(11, 21), (16, 16)]
    assert one[0].timestep == other[0].timestep


@pytest.mark.parametrize("shape", [SQUARE, WIDE])
def test_tokens_of_a_reference_are_counted(
    shape: ReferenceShape, tokenizer: Tokenizer, model: ModelConfig
) -> None:
    with_it = rows_for(tokenizer, model, references=(shape,)).layout
    without = rows_for(tokenizer, model, references=()).layout
    count = num_reference_tokens(model, shape.bucket)
    assert with_it.prefix_len - without.prefix_len == count == with_it.references[0].num_tokens


def test_the_pretrain_template_has_no_place_for_them(
    tokenizer: Tokenizer, model: ModelConfig
) -> None:
    with pytest.raises(InvalidRequestError, match="use the instruct template") as caught:
        rows_for(tokenizer, model, template="pretrain")
    assert caught.value.param == "template"


def test_a_row_that_is_too_long_names_what_fills_it(
    tokenizer: Tokenizer, model: ModelConfig
) -> None:
    with pytest.raises(InvalidRequestError, match=r"at most \d+ prompt tokens fit") as caught:
        rows_for(tokenizer, model, prompt="a cat " * 500)
    assert caught.value.param == "prompt"
    largest = max(supported_sizes(tokenizer, model), key=lambda b: b.height * b.width)
    wide = ReferenceShape(largest, (8, 8))
    with pytest.raises(InvalidRequestError, match="send fewer reference images") as caught:
        rows_for(tokenizer, model, references=(wide, wide, wide, wide))
    assert caught.value.param == "image"


@pytest.mark.parametrize("is_distilled", [False, True])
def test_references_leave_room_for_the_whole_target(model: ModelConfig, is_distilled: bool) -> None:
    model = replace(model, cfg_distilled=is_distilled, use_meanflow=is_distilled)
    target = (3 if is_distilled else 1) + 16 * 16
    room = target + 2 * num_reference_tokens(model, SQUARE.bucket)
    numbers = [
        max_references(replace(model, max_position_embeddings=size), (SQUARE.bucket,))
        for size in (room - 1, room)
    ]
    assert numbers == [1, 2]
