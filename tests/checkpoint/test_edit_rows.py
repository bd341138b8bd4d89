"""Edits as training reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.checkpoint.edit_rows import EditSettings, edit_chunks, num_text_slots
from kit.checkpoint.edits import random_edit
from kit.checkpoint.preset import TOY
from kit.checkpoint.render import render
from kit.engine.references import scale_reference
from kit.errors import ConfigError
from kit.modelspec.config import ModelConfig
from kit.modelspec.vision import VisionConfig
from kit.tokenizer.template import supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

SLOTS = 114


def test_rows_are_the_runtimes_with_one_head(toy_folder: Path, toy_tokenizer: Tokenizer) -> None:
    settings = EditSettings(toy_folder, SLOTS, num_instructions=3)
    (chunk,) = edit_chunks([((192, 320), 2)], 5, settings)
    assert chunk.pixels.shape == (2, 2, 192, 320, 3)
    assert chunk.prefixes.shape == (2, 3, 2, SLOTS)
    special, span = toy_tokenizer.special, chunk.span
    assert (span.latent_grid, span.num_patch_tokens) == ((12, 20), 16)
    assert chunk.head[0] == special.bos
    assert chunk.head[span.timestep - 3] == special.boi
    assert chunk.head[span.timestep] == special.target[0]
    assert chunk.head[span.latents.end] == special.joint_img_sep
    assert chunk.head[-1] == special.eoi
    assert len(chunk.head) == span.end + 1
    for rows, length in zip(chunk.prefixes.reshape(6, 2, SLOTS), chunk.lengths.flat, strict=True):
        conditional, unconditional = (row[SLOTS - length :].tolist() for row in rows)
        tail = [special.tags["<answer>"], special.boi, special.img_size, special.img_ratio[12]]
        assert conditional[-4:] == unconditional[-4:] == tail
        hidden = [i for i, token in enumerate(unconditional) if token == special.cfg]
        # The instruction alone is hidden, and it opens the text.
        assert hidden == list(range(len(hidden)))
        assert conditional[len(hidden) :] == unconditional[len(hidden) :]
        assert special.cfg not in conditional
        assert set(rows[:, : SLOTS - length].flat) <= {special.eoi}


def test_pictures_are_source_target_and_the_engines_patches(
    toy_folder: Path, toy_config: ModelConfig, toy_tokenizer: Tokenizer
) -> None:
    settings = EditSettings(toy_folder, SLOTS, num_instructions=1)
    (chunk,) = edit_chunks([((256, 256), 3)], 6, settings)
    edit = random_edit(np.random.default_rng((6, 2, 256, 256, 1)), size=(256, 256))
    assert np.array_equal(chunk.pixels[2, 0], render(edit.source))
    assert np.array_equal(chunk.pixels[2, 1], render(edit.target))
    assert isinstance(toy_config.vision, VisionConfig)
    sizes = supported_sizes(toy_tokenizer, toy_config)
    image = scale_reference(chunk.pixels[2, 0], sizes, toy_config.vision)
    assert np.array_equal(chunk.patches[2], image.patch_pixels)
    assert np.array_equal(chunk.pixels[2, 0], image.latent_pixels)


@pytest.mark.long
def test_processes_make_the_same(toy_folder: Path) -> None:
    settings = EditSettings(toy_folder, SLOTS, num_instructions=1)
    wanted = [((128, 384), 990), ((144, 368), 10)]
    alone = list(edit_chunks(wanted, 8, settings))
    together = list(edit_chunks(wanted, 8, settings, num_workers=2))
    for a, b in zip(alone, together, strict=True):
        assert (a.size, a.span) == (b.size, b.span)
        for one, other in ((a.pixels, b.pixels), (a.patches, b.patches), (a.prefixes, b.prefixes)):
            assert np.array_equal(one, other)


def test_the_text_has_what_the_square_leaves(
    toy_config: ModelConfig, toy_tokenizer: Tokenizer
) -> None:
    slots = TOY.shape.edit_slots
    square = num_text_slots(toy_tokenizer, toy_config, slots, (256, 256))
    assert 60 < square <= slots - 2 * 256 - 16 - 8
    assert num_text_slots(toy_tokenizer, toy_config, slots, (192, 320)) == square + 2 * 16


def test_instructions_that_never_fit_are_refused(toy_folder: Path) -> None:
    with pytest.raises(ConfigError, match="longer than 5 tokens"):
        list(edit_chunks([((256, 256), 1)], 9, EditSettings(toy_folder, 5, 1)))
