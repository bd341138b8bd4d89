"""Text to token ids, by the checkpoint's own tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from kit.errors import CheckpointError
from kit.modelspec.config import ModelConfig
from kit.tokenizer.buckets import NUM_BASE_BUCKETS, Bucket, resolution_buckets
from kit.tokenizer.special import SpecialTokens, check_ids, find_special_tokens


class Tokenizer:
    """The text encoder, the special tokens and the image sizes of one checkpoint.

    The official tokenizer turns text that spells a special token into that token, so a user who
    writes "<img>" or "<timestep>" forges the structure of the row. Here `encode` knows plain
    text only and the templates place special tokens by id. For text without such spellings the
    ids are the official ones.
    """

    special: SpecialTokens
    buckets: tuple[Bucket, ...]
    """Sizes in the order of their ratio tokens: 33, or 37 where the vocabulary has the tokens."""

    def __init__(
        self, text_encoder: tokenizers.Tokenizer, special: SpecialTokens, base_size: int
    ) -> None:
        """Take an encoder that has no added tokens; `from_folder` makes one."""
        self._text_encoder = text_encoder
        self.special = special
        extended = len(special.img_ratio) > NUM_BASE_BUCKETS
        self.buckets = resolution_buckets(base_size, extended=extended)

    @classmethod
    def from_folder(cls, folder: Path, model: ModelConfig) -> Tokenizer:
        """Read `folder/tokenizer.json`; `model` is the folder's own config.json.

        Raises CheckpointError if the file is missing or damaged, a needed special token is
        absent, or an id contradicts config.json.
        """
        path = folder / "tokenizer.json"
        try:
            content = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise CheckpointError(f"tokenizer.json is missing in {folder}") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read as UTF-8 text: {error}") from error
        official = _parse(content, path)
        vocabulary = official.get_vocab(with_added_tokens=True)
        special = find_special_tokens(vocabulary, model)
        check_ids(vocabulary, model, folder)
        text_encoder = _without_added_tokens(official)
        _check_plain(text_encoder, official, special)
        return cls(text_encoder, special, model.image_base_size)

    def encode(self, text: str) -> list[int]:
        """Return the ids of one section of text; nothing is added, nothing in it is special.

        `text` is valid Unicode (no lone surrogates).
        """
        return self._text_encoder.encode(text, add_special_tokens=False).ids


def _parse(content: str, path: Path) -> tokenizers.Tokenizer:
    try:
        parsed = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is no tokenizer: {error}") from error
    # The library numbers added tokens by their order and silently ignores the ids in the file.
    for entry in json.loads(content).get("added_tokens", []):
        given = parsed.token_to_id(entry["content"])
        if given != entry["id"]:
            raise CheckpointError(
                f"{path}: added token {entry['content']} has id {entry['id']}, but its place in "
                f"the vocabulary is {given}; the file was edited, get the original one"
            )
    return parsed


def _without_added_tokens(official: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return an encoder with the same text model that no spelling of an added token triggers.

    The library's own switch, `encode_special_tokens`, passes over the added tokens that the file
    does not mark as special.
    """
    plain = tokenizers.Tokenizer(official.model)
    plain.normalizer = official.normalizer
    plain.pre_tokenizer = official.pre_tokenizer
    return plain


def _check_plain(
    text_encoder: tokenizers.Tokenizer, official: tokenizers.Tokenizer, special: SpecialTokens
) -> None:
    forbidden = special.ids()
    # One by one: a batch starts threads, which makes a later fork of this process unsafe.
    for token_id in sorted(forbidden):
        spelling = official.id_to_token(token_id)
        assert spelling is not None, "the id was looked up in this vocabulary"
        if forbidden.intersection(text_encoder.encode(spelling, add_special_tokens=False).ids):
            raise CheckpointError(
                f"tokenizer.json: its text model by itself turns the text {spelling} into the "
                f"special token, so any prompt could forge it; expected it in added_tokens only"
            )
