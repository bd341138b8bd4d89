"""Rows against the recorded cases of the reference, and what a request may not ask."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from kit.errors import CheckpointError, InvalidRequestError
from kit.modelspec.config import ModelConfig, load_model_config
from kit.tokenizer.buckets import nearest_bucket
from kit.tokenizer.layout import Layout, Rows, positions_yx
from kit.tokenizer.special import TAGS
from kit.tokenizer.template import build_rows, supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
CHECKPOINTS = {
    "checkpoint": ROOT / "kit" / "checkpoint" / "golden",
    "checkpoint_distil": ROOT / "tests" / "golden" / "checkpoint_distil",
}
MODELS = {name: load_model_config(folder) for name, folder in CHECKPOINTS.items()}
TOKENIZERS = {name: Tokenizer.from_folder(CHECKPOINTS[name], MODELS[name]) for name in MODELS}
MODEL, TOKENIZER = MODELS["checkpoint"], TOKENIZERS["checkpoint"]
OFFICIAL = tokenizers.Tokenizer.from_file(str(CHECKPOINTS["checkpoint"] / "tokenizer.json"))
ADDED = {token.content: i for i, token in OFFICIAL.get_added_tokens_decoder().items()}
CASES = sorted(
    path
    for folder in (ROOT / "tests" / "golden", ROOT / "kit" / "doctor" / "golden")
    for path in folder.glob("case_*.json")
    if "_ref" not in path.stem  # those are in test_reference_rows.py
)

Arrays = dict[str, npt.NDArray[Any]]


def rows_for(
    prompt: str = "a cat on a mat",
    *,
    tokenizer: Tokenizer = TOKENIZER,
    model: ModelConfig = MODEL,
    **changes: Any,
) -> Rows:
    options: dict[str, Any] = {
        "system_prompt": None,
        "cot_text": None,
        "template": "instruct",
        "height": 256,
        "width": 256,
        "num_rows": 2,
        "drop_think": False,
    }
    return build_rows(tokenizer, model, prompt=prompt, **(options | changes))


def official_ids(text: str) -> list[int]:
    return OFFICIAL.encode(text, add_special_tokens=False).ids


def mask_of(layout: Layout) -> npt.NDArray[np.bool_]:
    """Causal, and full inside the generated image; rows are queries."""
    mask = np.tril(np.ones((layout.seq_len, layout.seq_len), dtype=bool))
    span = slice(layout.image_span.start, layout.image_span.end)
    mask[span, span] = True
    return mask


# --- against the reference -----------------------------------------------------------------------


def load_arrays(case: Path) -> Arrays:
    names = {"input_ids", "positions_yx", "attention_mask_packed", "image_mask"}
    names |= {"gen_timestep_index", "guidance_index", "timesteps_r_index"}
    names |= {"later_step_position_ids"}
    with safe_open(case.with_suffix(".safetensors"), "np") as file:
        return {name: file.get_tensor(name) for name in names & set(file.keys())}


def case_rows(inputs: dict[str, Any], prompt: str) -> Rows:
    height, width = inputs["image_size_hw"]
    return rows_for(
        prompt,
        tokenizer=TOKENIZERS[inputs["checkpoint"]],
        model=MODELS[inputs["checkpoint"]],
        system_prompt=inputs["system_prompt"],
        cot_text=inputs["cot_text"],
        template=inputs["sequence_template"],
        height=height,
        width=width,
        num_rows=1 if inputs["cfg_rows"] == "cond only" else 2,
    )


def test_all_cases_are_here() -> None:
    assert len(CASES) == 7


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_rows_against_reference(case: Path) -> None:
    inputs, arrays = json.loads(case.read_text()), load_arrays(case)
    prompts = [inputs["prompt"]] if isinstance(inputs["prompt"], str) else inputs["prompt"]
    pad = ADDED["<pad>"]
    for index, prompt in enumerate(prompts):
        rows = case_rows(inputs, prompt)
        layout, length = rows.layout, rows.layout.seq_len
        # A batch has all conditional rows first, then all unconditional ones.
        places = [index + branch * len(prompts) for branch in range(rows.num_rows)]
        for place, ids in zip(places, rows.token_ids, strict=True):
            assert arrays["input_ids"][place, :length].tolist() == list(ids)
            assert set(arrays["input_ids"][place, length:].tolist()) <= {pad}
            shared = place if len(arrays["positions_yx"]) > 1 else 0
            positions = arrays["positions_yx"][shared, :length]
            np.testing.assert_array_equal(positions_yx(layout), positions)

            packed = arrays["attention_mask_packed"]
            mask = np.unpackbits(packed[place if len(packed) > 1 else 0], axis=-1).astype(bool)
            np.testing.assert_array_equal(mask_of(layout), mask[:length, :length])

            special = range(layout.prefix_len, layout.prefix_len + layout.num_special)
            names = ["gen_timestep_index", "guidance_index", "timesteps_r_index"]
            found = [int(arrays[name][place, 0]) for name in names if name in arrays]
            assert found == list(special)
            later = arrays["later_step_position_ids"][place].tolist()
            assert later == list(range(layout.prefix_len, layout.kv_len))
            image = np.zeros(arrays["image_mask"].shape[1], dtype=np.uint8)
            image[layout.image_span.start : layout.image_span.end] = 1
            np.testing.assert_array_equal(image, arrays["image_mask"][place])
    assert rows.num_rows * len(prompts) == len(arrays["input_ids"])
    assert max(case_rows(inputs, p).layout.seq_len for p in prompts) == inputs["seq_len"]
    assert list(layout.grid) == inputs["token_hw"]


def test_a_renumbered_vocabulary_gives_the_same_rows(tmp_path: Path) -> None:
    """All special tokens at other ids: nothing but their spelling counts."""
    content = json.loads((CHECKPOINTS["checkpoint"] / "tokenizer.json").read_text("utf-8"))
    first = min(ADDED.values())
    names = [entry["content"] for entry in content["added_tokens"]][::-1]
    for place, (entry, name) in enumerate(zip(content["added_tokens"], names, strict=True)):
        entry["content"], entry["id"] = name, first + place
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    moved = {name: first + place for place, name in enumerate(names)}
    config = json.loads((CHECKPOINTS["checkpoint"] / "config.json").read_text())
    config |= {
        "bos_token_id": moved["<|startoftext|>"],
        "eos_token_id": moved["<|endoftext|>"],
        "pad_token_id": moved["<pad>"],
        "pad_id": moved["<pad>"],
        "im_start_id": moved["<boi>"],
        "im_end_id": moved["<eoi>"],
        "image_token_id": moved["<img>"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path, load_model_config(tmp_path))
    request: dict[str, Any] = {
        "system_prompt": "Draw <think>.",
        "cot_text": "<think>calm</think><recaption>a cat</recaption>",
        "height": 192,
        "width": 320,
    }
    rows, other = rows_for(**request), rows_for(tokenizer=tokenizer, **request)
    renumber = {i: moved[name] for name, i in ADDED.items()}
    assert all(renumber[i] != i for i in (ADDED["<img>"], ADDED["<cfg>"], ADDED["<boi>"]))
    for ids, other_ids in zip(rows.token_ids, other.token_ids, strict=True):
        assert [renumber.get(i, i) for i in ids] == list(other_ids)


# --- the templates -------------------------------------------------------------------------------


def expected_rows(sections: list[str], hidden: list[str]) -> list[list[int]]:
    """The two prefixes as the official tokenizer encodes them, section by section."""
    conditional, unconditional = [], []
    for section in sections:
        ids = official_ids(section)
        conditional += ids
        unconditional += [ADDED["<cfg>"]] * len(ids) if section in hidden else ids
    return [conditional, unconditional]


def prefixes(rows: Rows) -> list[list[int]]:
    return [list(ids[: rows.layout.prefix_len]) for ids in rows.token_ids]


BOI = ["<boi><img_size_256><img_ratio_16>"]
BEFORE = ["<|startoftext|>", "User: ", "a cat", "\n\n", "Assistant: "]


@pytest.mark.parametrize(
    ("cot", "sections", "hidden"),
    [
        (
            "<think>so calm</think><recaption>a cat, film</recaption>",
            ["<think>", "so calm", "</think>", "<recaption>", "a cat, film", "</recaption>"],
            ["so calm", "a cat, film"],
        ),
        (
            "<recaption>a cat, film</recaption>\n<think>so calm</think> end",
            [
                "<recaption>",
                "a cat, film",
                "</recaption>",
                "\n",
                "<think>",
                "so calm",
                "</think>",
                " end",
            ],
            ["a cat, film", "\n", "so calm", " end"],
        ),
        ("<think></think>", ["<think>", "</think>"], []),
        ("first <think>x</think>", ["first ", "<think>", "x", "</think>"], ["first ", "x"]),
        (
            "a plain answer",
            ["<answer>a plain answer</answer>"],
            ["<answer>a plain answer</answer>"],
        ),
    ],
)
def test_cot_sections(cot: str, sections: list[str], hidden: list[str]) -> None:
    rows = rows_for("a cat", cot_text=cot)
    wanted = expected_rows([*BEFORE, *sections, "<answer>", *BOI], ["a cat", *hidden])
    assert prefixes(rows) == wanted
    tail = [i for section in ("<eoi>", "</answer>", "\n\n") for i in official_ids(section)]
    for ids in rows.token_ids:
        assert list(ids[rows.layout.kv_len :]) == tail


@pytest.mark.parametrize(
    ("cot", "kept", "hidden"),
    [
        (
            "<think>so calm</think><recaption>a</recaption>",
            ["<recaption>", "a", "</recaption>"],
            ["a"],
        ),
        ("one <think>so calm</think>two", ["one ", "two"], ["one ", "two"]),
        ("<think>so calm</think>", [], []),
        ("<recaption>a</recaption>", ["<recaption>", "a", "</recaption>"], ["a"]),
        (
            "a plain answer",
            ["<answer>a plain answer</answer>"],
            ["<answer>a plain answer</answer>"],
        ),
    ],
)
def test_drop_think(cot: str, kept: list[str], hidden: list[str]) -> None:
    rows = rows_for("a cat", cot_text=cot, drop_think=True)
    wanted = expected_rows([*BEFORE, *kept, "<answer>", *BOI], ["a cat", *hidden])
    assert prefixes(rows) == wanted


@pytest.mark.parametrize("template", ["pretrain", "instruct"])
def test_tags_in_a_system_prompt_are_tokens(template: str) -> None:
    system = "Answer as `<think>..</think><recaption>..</recaption>`, then <answer>."
    rows = rows_for("a cat", system_prompt=f"\n {system} \n", template=template)
    if template == "pretrain":
        sections = ["<|startoftext|>", system, "a cat", *BOI]
    else:
        sections = ["<|startoftext|>", system, "\n\n", *BEFORE[1:], "<answer>", *BOI]
    assert prefixes(rows) == expected_rows(sections, ["a cat"])


@pytest.mark.parametrize("blank", [None, "", " \n\t"])
@pytest.mark.parametrize("template", ["pretrain", "instruct"])
def test_blank_system_prompt_is_none(blank: str | None, template: str) -> None:
    assert rows_for(system_prompt=blank, template=template) == rows_for(template=template)


def test_prompt_is_taken_as_it_is() -> None:
    rows = rows_for(" a cat\n", template="pretrain")
    wanted = expected_rows(["<|startoftext|>", " a cat\n", *BOI], [" a cat\n"])
    assert prefixes(rows) == wanted


def test_distilled_target_opens_with_three_tokens() -> None:
    name = "checkpoint_distil"
    rows = rows_for(tokenizer=TOKENIZERS[name], model=MODELS[name], num_rows=1)
    start = rows.layout.prefix_len
    wanted = tuple(ADDED[token] for token in ("<timestep>", "<guidance>", "<timestep_r>"))
    assert rows.num_rows == 1
    assert rows.token_ids[0][start : start + 3] == wanted


def test_other_numbers_of_rows_are_a_mistake_of_the_caller() -> None:
    for num_rows in (0, 3):
        with pytest.raises(AssertionError, match="1 or 2 rows"):
            rows_for(num_rows=num_rows)


words = st.lists(st.one_of(st.text(max_size=6), st.sampled_from(sorted(ADDED))), max_size=6)
texts = words.map("".join)
cot_texts = st.one_of(
    st.none(),
    st.tuples(texts, texts, texts)
    .filter(lambda parts: not any(tag in "".join(parts) for tag in TAGS))
    .map(lambda p: f"<think>{p[0]}</think>{p[1]}<recaption>{p[2]}</recaption>"),
)
templates = st.sampled_from(["pretrain", "instruct"])


@given(
    prompt=texts.filter(lambda text: bool(text.strip())),
    system=texts,
    cot=cot_texts,
    template=templates,
    drop_think=st.booleans(),
    bucket=st.sampled_from(supported_sizes(TOKENIZER, MODEL)),
)
def test_rows_have_one_layout_and_cfg_hides_user_text_only(
    prompt: str, system: str, cot: str | None, template: str, drop_think: bool, bucket: Any
) -> None:
    rows = rows_for(
        prompt,
        system_prompt=system,
        cot_text=cot if template == "instruct" else None,
        template=template,
        drop_think=drop_think,
        height=bucket.height,
        width=bucket.width,
    )
    layout, special = rows.layout, TOKENIZER.special
    conditional, unconditional = rows.token_ids
    assert len(conditional) == len(unconditional) == layout.seq_len
    # The structure is where the layout says, once, whatever the texts spell.
    for ids in rows.token_ids:
        assert ids[0] == special.bos
        assert ids.count(special.bos) == ids.count(special.boi) == ids.count(special.eoi) == 1
        assert ids.count(special.target[0]) == 1
        assert ids[layout.prefix_len] == special.target[0]
        assert ids[layout.prefix_len - 3] == special.boi
        assert ids[layout.prefix_len - 2] == special.img_size
        assert ids[layout.prefix_len - 1] == special.img_ratio[bucket.ratio_index]
        span = layout.image_span
        assert set(ids[span.start : span.end]) == {special.img}
        assert ids.count(special.img) == layout.num_image
        assert ids[layout.kv_len] == special.eoi
    assert layout.num_image == bucket.height * bucket.width // 256
    assert special.cfg not in conditional
    hidden = [i for i, other in zip(conditional, unconditional, strict=True) if i != other]
    assert {b for a, b in zip(conditional, unconditional, strict=True) if a != b} == {special.cfg}
    user_texts = [prompt]
    if cot is not None and template == "instruct":
        _, think, between, recaption, _ = re.split("</?think>|</?recaption>", cot)
        user_texts += [between, recaption] if drop_think else [think, between, recaption]
    assert hidden == [i for text in user_texts for i in TOKENIZER.encode(text)]


# --- sizes ---------------------------------------------------------------------------------------


def test_sizes_of_the_golden_checkpoint() -> None:
    """The four fixed sizes need 3072 image tokens and more; the checkpoint has 1536 positions."""
    assert supported_sizes(TOKENIZER, MODEL) == TOKENIZER.buckets[:33]


def test_sizes_with_the_official_number_of_positions() -> None:
    model = replace(MODEL, max_position_embeddings=22800)
    assert supported_sizes(TOKENIZER, model) == TOKENIZER.buckets
    for height, width, ratio in ((720, 1280, 36), (1280, 720, 34)):
        rows = rows_for(model=model, height=height, width=width)
        assert rows.layout.grid == (height // 16, width // 16)
        ratio_id = rows.token_ids[0][rows.layout.prefix_len - 1]
        assert ratio_id == ADDED[f"<img_ratio_{ratio}>"]


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_distil"])
def test_a_size_is_supported_as_long_as_its_shortest_row_fits(name: str) -> None:
    tokenizer, model = TOKENIZERS[name], MODELS[name]
    square = tokenizer.buckets[16]
    request: dict[str, Any] = {"tokenizer": tokenizer, "template": "pretrain", "num_rows": 1}
    shortest = rows_for("a", model=model, **request).layout.seq_len
    exact = replace(model, max_position_embeddings=shortest)
    assert square in supported_sizes(tokenizer, exact)
    assert rows_for("a", model=exact, **request).layout.seq_len == shortest
    short = replace(model, max_position_embeddings=shortest - 1)
    assert square not in supported_sizes(tokenizer, short)


def test_sizes_that_the_vae_cannot_cut_are_left_out() -> None:
    model = replace(MODEL, vae_downsample_factor=32, max_position_embeddings=22800)
    sizes = supported_sizes(TOKENIZER, model)
    assert sizes
    assert all(b.height % 32 == b.width % 32 == 0 for b in sizes)


def test_no_size_at_all_is_a_fault_of_the_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="max_position_embeddings: 100 positions"):
        supported_sizes(TOKENIZER, replace(MODEL, max_position_embeddings=100))


@pytest.mark.parametrize(
    ("height", "width", "nearest"),
    [
        (512, 512, "256x256"),
        (1080, 1920, "320x192"),
        (1024, 768, "224x288"),
        (1, 1, "256x256"),
        (10000, 100000, "512x128"),
        (257, 256, "256x256"),
    ],
)
def test_unsupported_size_is_refused(height: int, width: int, nearest: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rows_for(height=height, width=width)
    message = str(caught.value)
    assert caught.value.param == "size"
    assert f"{width}x{height} is not supported; nearest supported: {nearest};" in message
    sizes = supported_sizes(TOKENIZER, MODEL)
    assert message.endswith(", ".join(f"{b.width}x{b.height}" for b in sizes))
    assert str(nearest_bucket(sizes, height, width)) == nearest


@pytest.mark.parametrize(
    ("height", "width"), [(0, 256), (256, 0), (-256, -256), (10**400, 1), (1, 10**400)]
)
def test_absurd_size_is_refused(height: int, width: int) -> None:
    with pytest.raises(InvalidRequestError, match="is not supported; sizes") as caught:
        rows_for(height=height, width=width)
    assert caught.value.param == "size"


# --- what a request may not ask ------------------------------------------------------------------


def refusal(**changes: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        rows_for(**changes)
    assert str(caught.value).startswith(f"{caught.value.param}: ")
    return caught.value


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t", "\u3000"])
@pytest.mark.parametrize("template", ["pretrain", "instruct"])
def test_blank_prompt_is_refused(prompt: str, template: str) -> None:
    assert refusal(prompt=prompt, template=template).param == "prompt"


@pytest.mark.parametrize("template", ["", "auto", "Instruct"])
def test_unknown_template_is_refused(template: str) -> None:
    error = refusal(template=template)
    assert error.param == "template"
    assert "pretrain, instruct" in str(error)


@pytest.mark.parametrize("field", ["prompt", "system_prompt", "cot_text"])
def test_half_of_a_surrogate_pair_is_refused(field: str) -> None:
    text = json.loads('"so \\ud83d it is"')
    error = refusal(**{field: text})
    assert error.param == field
    assert "U+D83D) at index 3" in str(error)


def test_cot_with_the_pretrain_template_is_refused() -> None:
    error = refusal(cot_text="<think>a</think>", template="pretrain")
    assert error.param == "cot_text"
    assert "pretrain" in str(error)


@pytest.mark.parametrize("cot", ["", "  \n"])
def test_blank_cot_is_refused(cot: str) -> None:
    assert refusal(cot_text=cot).param == "cot_text"


@pytest.mark.parametrize(
    "cot",
    [
        "<think>a",
        "a</think>",
        "</think>a<think>",
        "<recaption>a</think>",
        "<recaption>",
        "<think>a<recaption>b</recaption></think>",
        "<think>a<think>b</think></think>",
        "<think>a</think><think>b</think>",
        "<think>a</think><recaption>b",
        "<recaption>a</recaption><think>b</think><recaption>c</recaption>",
        "<answer>a</answer>",
        "<think>a</think><answer>",
        "<think>a</think></answer>",
    ],
)
@pytest.mark.parametrize("drop_think", [False, True])
def test_malformed_cot_is_refused(cot: str, drop_think: bool) -> None:
    error = refusal(cot_text=cot, drop_think=drop_think)
    assert error.param == "cot_text"
    assert "not nested" in str(error)


@pytest.mark.parametrize("template", ["pretrain", "instruct"])
def test_prompt_that_does_not_fit_is_told_how_much_does(template: str) -> None:
    overhead = rows_for("a", template=template).layout.seq_len - 1
    room = MODEL.max_position_embeddings - overhead
    fits = "a" + " a" * (room - 1)
    assert len(TOKENIZER.encode(fits)) == room
    layout = rows_for(fits, template=template).layout
    assert layout.seq_len == MODEL.max_position_embeddings
    error = refusal(prompt=fits + " a", template=template)
    assert error.param == "prompt"
    assert f"the row has {layout.seq_len + 1} tokens, the model takes 1536" in str(error)
    given = f"at most {room} prompt tokens fit beside the rest and an image of 256x256"
    assert f"{given}, got {room + 1}; shorten it or use 272x240, the largest size that fits" in str(
        error
    )


def test_a_prompt_too_long_for_any_size_is_told_to_shorten_it() -> None:
    error = refusal(prompt="a" * 5000)
    assert str(error).endswith("; shorten it")
    assert "size" not in str(error)


@pytest.mark.parametrize(
    ("system", "cot", "field"),
    [
        (" a" * 1400, None, "system_prompt"),
        (None, "<think>" + " a" * 1400, "cot_text"),
        (" a" * 700, " a" * 600, "system_prompt"),
        (" a" * 600, " a" * 700, "cot_text"),
    ],
)
def test_text_that_leaves_no_room_for_a_prompt_is_named(
    system: str | None, cot: str | None, field: str
) -> None:
    if cot is not None and cot.startswith("<think>"):
        cot += "</think>"
    error = refusal(system_prompt=system, cot_text=cot)
    assert error.param == field
    assert "no prompt token fits beside its" in str(error)
    other = "cot_text" if field == "system_prompt" else "system_prompt"
    assert (f" of {other} and an image of" in str(error)) == bool(system and cot)


def test_size_whose_template_alone_fills_the_row_is_named() -> None:
    shortest = rows_for("a", template="pretrain").layout.seq_len
    model = replace(MODEL, max_position_embeddings=shortest)
    error = refusal(model=model)
    assert error.param == "size"
    assert "beside an image of 256x256" in str(error)
