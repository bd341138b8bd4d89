"""Pictures and prefixes that training reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.checkpoint.dataset import sample
from kit.checkpoint.training_rows import (
    RowSettings,
    padded_prefix,
    prefix_rows,
    training_chunks,
)
from kit.errors import ConfigError
from kit.modelspec.config import ModelConfig
from kit.tokenizer.tokenizer import Tokenizer

SLOTS = 95


def test_prefixes_are_the_runtimes_and_padded_on_the_left(
    toy_folder: Path, toy_tokenizer: Tokenizer
) -> None:
    settings = RowSettings(toy_folder, SLOTS, num_captions=3, share_instruct=0.0)
    (chunk,) = training_chunks([((192, 320), 2)], 5, settings)
    assert chunk.size == (192, 320)
    assert chunk.pixels.shape == (2, 192, 320, 3)
    assert chunk.prefixes.shape == (2, 3, 2, SLOTS)
    special = toy_tokenizer.special
    for rows, length in zip(chunk.prefixes.reshape(6, 2, SLOTS), chunk.lengths.flat, strict=True):
        conditional, unconditional = (row[SLOTS - length :].tolist() for row in rows)
        tail = [special.boi, special.img_size, special.img_ratio[12]]
        assert conditional[0] == unconditional[0] == special.bos
        assert conditional[-3:] == unconditional[-3:] == tail
        assert set(unconditional[1:-3]) == {special.cfg}
        assert not special.ids().intersection(conditional[1:-3])
        assert set(rows[:, : SLOTS - length].flat) <= {special.eoi}


def test_both_templates_are_written(toy_folder: Path, toy_tokenizer: Tokenizer) -> None:
    settings = RowSettings(toy_folder, SLOTS, num_captions=8, share_instruct=0.5)
    (chunk,) = training_chunks([((256, 256), 2)], 6, settings)
    answers = (chunk.prefixes[:, :, 0] == toy_tokenizer.special.tags["<answer>"]).any(-1)
    assert answers.any()
    assert not answers.all()


def test_pictures_are_the_datasets(toy_folder: Path) -> None:
    settings = RowSettings(toy_folder, SLOTS, num_captions=0, share_instruct=0.0)
    for held_out in (False, True):
        (chunk,) = training_chunks([((256, 256), 3)], 7, settings, held_out=held_out)
        wanted = sample(2, 7, size=(256, 256), num_captions=0, held_out=held_out)
        assert np.array_equal(chunk.pixels[2], wanted.pixels)


def test_processes_make_the_same(toy_folder: Path) -> None:
    settings = RowSettings(toy_folder, SLOTS, num_captions=0, share_instruct=0.0)
    wanted = [((128, 128), 900), ((128, 144), 130)]
    alone = list(training_chunks(wanted, 8, settings))
    together = list(training_chunks(wanted, 8, settings, num_workers=2))
    assert [c.size for c in together] == [c.size for c in alone]
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a.pixels, b.pixels)


def test_captions_that_never_fit_are_refused(toy_folder: Path) -> None:
    settings = RowSettings(toy_folder, 5, num_captions=1, share_instruct=0.0)
    with pytest.raises(ConfigError, match="longer than 5 tokens"):
        list(training_chunks([((256, 256), 1)], 9, settings))


def test_padding(toy_config: ModelConfig, toy_tokenizer: Tokenizer) -> None:
    conditional, unconditional = prefix_rows(toy_tokenizer, toy_config, "a cup", (256, 256))
    assert len(conditional) == len(unconditional)
    assert padded_prefix([4, 5], 4, 9) == [9, 9, 4, 5]
