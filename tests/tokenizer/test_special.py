"""Special tokens: which are needed, and what contradicts config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.errors import CheckpointError
from kit.modelspec.config import ModelConfig, load_model_config
from kit.tokenizer.special import TAGS, check_ids, find_special_tokens


@pytest.fixture
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


@pytest.fixture
def vocabulary(tables: dict[str, Any]) -> dict[str, int]:
    return dict(tables["special_token_ids"])


def test_ids_are_those_of_the_spellings(vocabulary: dict[str, int], model: ModelConfig) -> None:
    special = find_special_tokens(vocabulary, model)
    assert (special.bos, special.cfg) == (vocabulary["<|startoftext|>"], vocabulary["<cfg>"])
    assert (special.boi, special.eoi) == (vocabulary["<boi>"], vocabulary["<eoi>"])
    assert special.img == vocabulary["<img>"]
    assert special.img_size == vocabulary["<img_size_256>"]
    assert special.img_ratio == tuple(vocabulary[f"<img_ratio_{k}>"] for k in range(37))
    assert special.target == (vocabulary["<timestep>"],)
    assert special.tags == {tag: vocabulary[tag] for tag in TAGS}


def test_base_size_selects_its_token(vocabulary: dict[str, int], model: ModelConfig) -> None:
    special = find_special_tokens(vocabulary, replace(model, image_base_size=1024))
    assert special.img_size == vocabulary["<img_size_1024>"]
    with pytest.raises(CheckpointError, match=r"<img_size_320>.*image_base_size"):
        find_special_tokens(vocabulary, replace(model, image_base_size=320))


@pytest.mark.parametrize(
    ("cfg_distilled", "use_meanflow", "tokens"),
    [
        (True, True, ["<timestep>", "<guidance>", "<timestep_r>"]),
        (True, False, ["<timestep>", "<guidance>"]),
        (False, True, ["<timestep>", "<timestep_r>"]),
        (False, False, ["<timestep>"]),
    ],
)
def test_target_follows_the_model(
    vocabulary: dict[str, int],
    model: ModelConfig,
    cfg_distilled: bool,
    use_meanflow: bool,
    tokens: list[str],
) -> None:
    model = replace(model, cfg_distilled=cfg_distilled, use_meanflow=use_meanflow)
    special = find_special_tokens(vocabulary, model)
    assert special.target == tuple(vocabulary[token] for token in tokens)
    assert len(special.target) == model.num_special
    for token in tokens:
        rest = {name: i for name, i in vocabulary.items() if name != token}
        with pytest.raises(CheckpointError, match=token):
            find_special_tokens(rest, model)


def test_every_missing_token_is_named(vocabulary: dict[str, int], model: ModelConfig) -> None:
    special = find_special_tokens(vocabulary, model)
    needed = [token for token, i in vocabulary.items() if i in special.ids()]
    for token in needed:
        if token in {f"<img_ratio_{k}>" for k in range(33, 37)} | {"<joint_img_sep>"}:
            continue  # sizes and reference images that a vocabulary may lack
        rest = {name: i for name, i in vocabulary.items() if name != token}
        with pytest.raises(CheckpointError, match=r"tokenizer\.json lacks") as caught:
            find_special_tokens(rest, model)
        assert token in str(caught.value)
    with pytest.raises(CheckpointError) as caught:
        find_special_tokens({}, model)
    assert "<boi>" in str(caught.value)
    assert "<img_ratio_32>" in str(caught.value)


@pytest.mark.parametrize("gone", [{33, 34, 35, 36}, {34, 35, 36}, {35}])
def test_a_vocabulary_without_all_extra_ratios_has_33(
    vocabulary: dict[str, int], model: ModelConfig, gone: set[int]
) -> None:
    for k in gone:
        del vocabulary[f"<img_ratio_{k}>"]
    assert len(find_special_tokens(vocabulary, model).img_ratio) == 33


@pytest.mark.parametrize(
    "field",
    [
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "pad_id",
        "im_start_id",
        "im_end_id",
        "image_token_id",
    ],
)
def test_ids_of_config_are_checked(
    vocabulary: dict[str, int],
    model: ModelConfig,
    checkpoint: Path,
    tmp_path: Path,
    field: str,
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    right = config[field]
    for value, accepted in [
        (right, True),
        ([1, right], True),
        (None, True),
        (right + 1, False),
        ([1], False),
        ("x", False),
    ]:
        config[field] = value
        (tmp_path / "config.json").write_text(json.dumps(config))
        if accepted:
            check_ids(vocabulary, model, tmp_path)
        else:
            with pytest.raises(CheckpointError, match=f"config.json {field}: got"):
                check_ids(vocabulary, model, tmp_path)
    del config[field]
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_ids(vocabulary, model, tmp_path)


def test_an_id_outside_the_embedding_table_is_refused(
    vocabulary: dict[str, int], model: ModelConfig, checkpoint: Path
) -> None:
    highest = max(vocabulary.values())
    check_ids(vocabulary, replace(model, vocab_size=highest + 1), checkpoint)
    with pytest.raises(CheckpointError, match=f"vocab_size: got {highest}") as caught:
        check_ids(vocabulary, replace(model, vocab_size=highest), checkpoint)
    assert "<img_ratio_36>" in str(caught.value)


def test_a_missing_or_damaged_config_is_refused(
    vocabulary: dict[str, int], model: ModelConfig, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        check_ids(vocabulary, model, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        check_ids(vocabulary, model, tmp_path)
