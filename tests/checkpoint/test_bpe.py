"""The vocabulary: official special tokens above text, nothing that text could forge."""

from __future__ import annotations

from kit.checkpoint.bpe import SPECIAL_TOKENS, train_tokenizer
from kit.checkpoint.captions import training_captions
from kit.tokenizer.tokenizer import Tokenizer

CAPTIONS = tuple(training_captions(60, seed=2))


def test_special_tokens_come_last_and_the_size_is_met() -> None:
    tokenizer = train_tokenizer(CAPTIONS, 360)
    assert tokenizer.get_vocab_size() == 360
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary[token] for token in SPECIAL_TOKENS) == list(
        range(360 - len(SPECIAL_TOKENS), 360)
    )


def test_the_same_captions_give_the_same_tokenizer() -> None:
    assert train_tokenizer(CAPTIONS, 360).to_str() == train_tokenizer(CAPTIONS, 360).to_str()


def test_every_text_survives(toy_tokenizer: Tokenizer) -> None:
    text = "A red Ünïcode VASE, <img> on\n\n表 🙂"
    ids = toy_tokenizer.encode(text)
    assert not toy_tokenizer.special.ids().intersection(ids)
    assert train_tokenizer(CAPTIONS, 360).decode(train_tokenizer(CAPTIONS, 360).encode("A CUP").ids)


def test_known_words_are_short(toy_tokenizer: Tokenizer) -> None:
    known, unknown = toy_tokenizer.encode(" background"), toy_tokenizer.encode(" qzxjvkqzxj")
    assert len(known) < len(unknown)
