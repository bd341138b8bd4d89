"""The tokens that are not text: looked up by their spelling, checked against config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.errors import CheckpointError
from kit.modelspec.config import ModelConfig
from kit.tokenizer.buckets import EXTRA_SIZES_HW, NUM_BASE_BUCKETS

TAGS = ("<think>", "</think>", "<recaption>", "</recaption>", "<answer>", "</answer>")
"""Tokens that mark the parts of an answer."""

# Fields of config.json that repeat the id of a token; absent or null ones say nothing.
_CONFIG_IDS = {
    "bos_token_id": "<|startoftext|>",
    "eos_token_id": "<|endoftext|>",
    "pad_token_id": "<pad>",
    "pad_id": "<pad>",
    "im_start_id": "<boi>",
    "im_end_id": "<eoi>",
    "image_token_id": "<img>",
}


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that the templates place."""

    bos: int
    """<|startoftext|>"""

    boi: int
    eoi: int
    img: int
    img_size: int
    """<img_size_B>, B the checkpoint's base size."""

    img_ratio: tuple[int, ...]
    """<img_ratio_k> by k: 33, or 37 where the vocabulary has them. The ids are not contiguous."""

    target: tuple[int, ...]
    """What opens the target: <timestep>, distilled also <guidance>, <timestep_r>, in this order."""

    cfg: int
    """Stands for each hidden token of the unconditional row."""

    tags: Mapping[str, int]
    """The ids of TAGS by spelling."""

    joint_img_sep: int | None
    """<joint_img_sep>, within a reference image; None where the vocabulary lacks it."""

    def ids(self) -> frozenset[int]:
        """Return all of them."""
        single = [self.bos, self.boi, self.eoi, self.img, self.img_size, self.cfg]
        if self.joint_img_sep is not None:
            single.append(self.joint_img_sep)
        return frozenset((*single, *self.img_ratio, *self.target, *self.tags.values()))


def find_special_tokens(vocabulary: Mapping[str, int], model: ModelConfig) -> SpecialTokens:
    """Look up the tokens that `model` needs; raises CheckpointError naming all that are missing."""
    target = ["<timestep>"]
    if model.cfg_distilled:
        target.append("<guidance>")
    if model.use_meanflow:
        target.append("<timestep_r>")
    img_size = f"<img_size_{model.image_base_size}>"
    ratios = [f"<img_ratio_{k}>" for k in range(NUM_BASE_BUCKETS)]
    extra = [f"<img_ratio_{NUM_BASE_BUCKETS + k}>" for k in range(len(EXTRA_SIZES_HW))]
    if all(token in vocabulary for token in extra):
        ratios += extra

    single = ["<|startoftext|>", "<boi>", "<eoi>", "<img>", img_size, "<cfg>"]
    missing = [t for t in (*single, *target, *TAGS, *ratios) if t not in vocabulary]
    if missing:
        hint = f" ({img_size} follows from image_base_size)" if img_size in missing else ""
        raise CheckpointError(
            f"tokenizer.json lacks special tokens that config.json calls for: "
            f"{', '.join(missing)}{hint}; use the two files of one checkpoint"
        )
    return SpecialTokens(
        bos=vocabulary["<|startoftext|>"],
        boi=vocabulary["<boi>"],
        eoi=vocabulary["<eoi>"],
        img=vocabulary["<img>"],
        img_size=vocabulary[img_size],
        img_ratio=tuple(vocabulary[token] for token in ratios),
        target=tuple(vocabulary[token] for token in target),
        cfg=vocabulary["<cfg>"],
        tags={token: vocabulary[token] for token in TAGS},
        joint_img_sep=vocabulary.get("<joint_img_sep>"),
    )


def check_ids(vocabulary: Mapping[str, int], model: ModelConfig, folder: Path) -> None:
    """Hold the ids against the rows of the embedding table and the ids in `folder/config.json`.

    Raises CheckpointError naming the field, its value and the token's id.
    """
    token, highest = max(vocabulary.items(), key=lambda item: item[1])
    if highest >= model.vocab_size:
        raise CheckpointError(
            f"config.json vocab_size: got {model.vocab_size}, but tokenizer.json gives {token} "
            f"the id {highest}; use the two files of one checkpoint"
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: {error}") from error
    for field, token in _CONFIG_IDS.items():
        got = config.get(field)
        given = vocabulary.get(token)
        if got is not None and given not in (got if isinstance(got, list) else [got]):
            raise CheckpointError(
                f"config.json {field}: got {got!r}, but tokenizer.json gives {token} the id "
                f"{given}; use the two files of one checkpoint"
            )
