"""A byte-level BPE vocabulary learnt from captions, closed by the official special tokens."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from kit.checkpoint.official_config import BASE_SIZE, END, PAD, START
from kit.tokenizer.buckets import NUM_BASE_BUCKETS
from kit.tokenizer.special import TAGS

SPECIAL_TOKENS = (
    END,
    START,
    PAD,
    "<boi>",
    "<eoi>",
    "<img>",
    "<cfg>",
    "<timestep>",
    "<guidance>",
    "<timestep_r>",
    "<joint_img_sep>",
    *TAGS,
    f"<img_size_{BASE_SIZE}>",
    *(f"<img_ratio_{k}>" for k in range(NUM_BASE_BUCKETS)),
)
"""Without the four ratios of the extended group: their sizes do not scale with the base size."""


def train_tokenizer(captions: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Learn merges until text and special tokens together are `vocab_size` tokens, or fewer if
    the captions do not have so many. The same captions give the same tokenizer.
    """
    num_text = vocab_size - len(SPECIAL_TOKENS)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert num_text >= len(alphabet), "every byte has a token"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_text, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(captions, trainer)
    # Added last: a special token's id is above those of text, and no text becomes one.
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(t, normalized=False) for t in SPECIAL_TOKENS]
    )
    return tokenizer
