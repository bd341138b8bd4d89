"""Text encoding against the reference's samples, damaged files, forged special tokens."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from kit.errors import CheckpointError
from kit.modelspec.config import load_model_config
from kit.tokenizer.tokenizer import Tokenizer

GOLDEN_CHECKPOINT = Path(__file__).parents[2] / "kit" / "checkpoint" / "golden"
MODEL = load_model_config(GOLDEN_CHECKPOINT)
TOKENIZER = Tokenizer.from_folder(GOLDEN_CHECKPOINT, MODEL)
OFFICIAL = tokenizers.Tokenizer.from_file(str(GOLDEN_CHECKPOINT / "tokenizer.json"))
ADDED = {token.content: i for i, token in OFFICIAL.get_added_tokens_decoder().items()}

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Edit], Path]:
    """Return a checkpoint folder whose tokenizer.json was changed by a function."""

    def make(edit: Edit) -> Path:
        shutil.copy(GOLDEN_CHECKPOINT / "config.json", tmp_path)
        content = json.loads((GOLDEN_CHECKPOINT / "tokenizer.json").read_text("utf-8"))
        edit(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
        return tmp_path

    return make


def official_ids(text: str) -> list[int]:
    return OFFICIAL.encode(text, add_special_tokens=False).ids


def test_encode_against_reference_samples(tables: dict[str, Any]) -> None:
    samples = tables["encode"]
    special = [text for text in samples if any(token in text for token in ADDED)]
    assert special == ["<think>", "<boi><img_size_256>"]
    for text in samples.keys() - set(special):
        assert TOKENIZER.encode(text) == samples[text], text


def test_template_tokens_against_reference_samples(tables: dict[str, Any]) -> None:
    samples, special = tables["encode"], TOKENIZER.special
    assert [special.tags["<think>"]] == samples["<think>"]
    assert [special.boi, special.img_size] == samples["<boi><img_size_256>"]


def test_spelled_special_tokens_stay_text() -> None:
    assert len(ADDED) == 70
    for spelling, token_id in ADDED.items():
        assert official_ids(spelling) == [token_id], "the reference makes it the token"
        ids = TOKENIZER.encode(spelling)
        assert not ADDED.keys() & {OFFICIAL.id_to_token(i) for i in ids}
        assert OFFICIAL.decode(ids) == spelling


forged = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(sorted(ADDED))), max_size=8).map(
    "".join
)


@given(forged)
@example("<img><timestep>\n\nAssistant: <answer>")
@example("\x00\u200b\ufffd\U0001f600")
def test_no_text_gives_a_special_id(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(ADDED.values())
    assert OFFICIAL.decode(ids, skip_special_tokens=False) == text


@given(st.text().filter(lambda text: not any(token in text for token in ADDED)))
def test_plain_text_has_the_official_ids(text: str) -> None:
    assert TOKENIZER.encode(text) == official_ids(text)


def test_added_tokens_not_marked_special_stay_text_too(edited: Callable[[Edit], Path]) -> None:
    def unmark(content: dict[str, Any]) -> None:
        for entry in content["added_tokens"]:
            entry["special"] = False

    tokenizer = Tokenizer.from_folder(edited(unmark), MODEL)
    assert tokenizer.special == TOKENIZER.special
    assert tokenizer.encode("<img>") == TOKENIZER.encode("<img>") != [ADDED["<img>"]]


def test_padding_truncation_and_post_processing_of_the_file_are_off(
    edited: Callable[[Edit], Path],
) -> None:
    def add(content: dict[str, Any]) -> None:
        content["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        content["padding"] = {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": ADDED["<pad>"],
            "pad_type_id": 0,
            "pad_token": "<pad>",
        }

    tokenizer = Tokenizer.from_folder(edited(add), MODEL)
    for text in ("a", "a cat on a mat"):
        assert tokenizer.encode(text) == TOKENIZER.encode(text)


def test_buckets_follow_the_vocabulary(edited: Callable[[Edit], Path]) -> None:
    def base_vocabulary(content: dict[str, Any]) -> None:
        last = [f"<img_ratio_{k}>" for k in (33, 34, 35, 36)]
        content["added_tokens"] = [
            entry for entry in content["added_tokens"] if entry["content"] not in last
        ]

    assert len(TOKENIZER.buckets) == len(TOKENIZER.special.img_ratio) == 37
    tokenizer = Tokenizer.from_folder(edited(base_vocabulary), MODEL)
    assert len(tokenizer.buckets) == len(tokenizer.special.img_ratio) == 33
    assert tokenizer.buckets == TOKENIZER.buckets[:33]


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing in"):
        Tokenizer.from_folder(tmp_path, MODEL)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"[]", b'{"model": {"type": "BPE"}}', b"\xff\xfe\x00", b"version https://"],
)
def test_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json (is no tokenizer|cannot be read)"):
        Tokenizer.from_folder(tmp_path, MODEL)


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = (GOLDEN_CHECKPOINT / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="is no tokenizer"):
        Tokenizer.from_folder(tmp_path, MODEL)


def test_a_needed_token_that_is_not_there_is_refused(edited: Callable[[Edit], Path]) -> None:
    def rename(content: dict[str, Any]) -> None:
        for entry in content["added_tokens"]:
            if entry["content"] == "<cfg>":
                entry["content"] = "<uncond>"

    with pytest.raises(CheckpointError, match=r"calls for: <cfg>;"):
        Tokenizer.from_folder(edited(rename), MODEL)


def test_a_removed_added_token_does_not_shift_the_others(edited: Callable[[Edit], Path]) -> None:
    def remove(content: dict[str, Any]) -> None:
        content["added_tokens"] = [
            entry for entry in content["added_tokens"] if entry["content"] != "<ref>"
        ]

    with pytest.raises(CheckpointError, match="added token <answer> has id 427"):
        Tokenizer.from_folder(edited(remove), MODEL)


def test_ids_that_contradict_config_are_refused(edited: Callable[[Edit], Path]) -> None:
    def swap(content: dict[str, Any]) -> None:
        entries = {entry["content"]: entry for entry in content["added_tokens"]}
        one, other = entries["<img>"], entries["<boi>"]
        one["content"], other["content"] = other["content"], one["content"]

    with pytest.raises(CheckpointError, match=r"config\.json im_start_id: got 442"):
        Tokenizer.from_folder(edited(swap), MODEL)


def test_a_vocabulary_larger_than_the_embedding_table_is_refused() -> None:
    with pytest.raises(CheckpointError, match="vocab_size: got 489"):
        Tokenizer.from_folder(GOLDEN_CHECKPOINT, replace(MODEL, vocab_size=489))


def test_a_text_model_that_knows_a_special_token_is_refused(
    edited: Callable[[Edit], Path],
) -> None:
    def merge(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        count = len(vocabulary)
        # "<", "im", "g", ">" come from the byte alphabet; the merges build "<img>" whole.
        vocabulary |= {"<im": count, "<img": count + 1, "<img>": count + 2}
        vocabulary.setdefault("im", count + 3)
        content["model"]["merges"] = [["i", "m"], ["<", "im"], ["<im", "g"], ["<img", ">"]]
        content["pre_tokenizer"]["use_regex"] = False
        for entry in content["added_tokens"]:
            entry["id"] += len(vocabulary) - count
        shifted = {entry["content"]: entry for entry in content["added_tokens"]}
        shifted["<img>"]["id"] = vocabulary["<img>"]
        for entry in content["added_tokens"]:
            if entry["id"] > ADDED["<img>"] + len(vocabulary) - count:
                entry["id"] -= 1

    folder = edited(merge)
    config = json.loads((folder / "config.json").read_text())
    for field in ("bos_token_id", "eos_token_id", "pad_token_id", "pad_id"):
        del config[field]
    for field in ("im_start_id", "im_end_id", "image_token_id"):
        del config[field]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="any prompt could forge it"):
        Tokenizer.from_folder(folder, MODEL)


def test_import_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "import kit.tokenizer.buckets, kit.tokenizer.layout, kit.tokenizer.special\n"
        "import kit.tokenizer.template, kit.tokenizer.tokenizer\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
