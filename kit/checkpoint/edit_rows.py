"""Edits as training reads them: both pictures, the reference's patches, the token rows.

A row's prefix is [head | text], the head from <|startoftext|> to the reference's <eoi>, the same in
all rows of one size; the text is what follows, up to the target's ratio token, padded on the left.
This module and what it imports needs no torch, so that workers start fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kit.checkpoint.chunks import Size, Task, run_tasks
from kit.checkpoint.edits import Edit, random_edit
from kit.checkpoint.instructions import training_instruction
from kit.checkpoint.render import render
from kit.checkpoint.training_rows import cut_prefixes, load_tokenizer, padded_prefix, prompt_rows
from kit.engine.references import reference_shape, scale_reference
from kit.errors import ConfigError, InvalidRequestError
from kit.modelspec.config import ModelConfig
from kit.modelspec.vision import VisionConfig
from kit.request import ReferenceImage
from kit.tokenizer.layout import ReferenceSpan
from kit.tokenizer.template import ReferenceShape, supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

_MAX_TRIES = 50


@dataclass(frozen=True)
class EditSettings:
    """How edits become rows."""

    folder: Path
    """Holds config.json and tokenizer.json; the config has a vision tower."""

    num_slots: int
    """Tokens of a padded text."""

    num_instructions: int


class EditChunk(NamedTuple):
    """N edits of one size with I instructions each."""

    size: Size
    pixels: NDArray[np.uint8]
    """[N, 2, height, width, 3], sRGB: source and target."""
    patches: NDArray[np.uint8]
    """[N, rows * p, columns * p, 3]: the sources, scaled for the vision tower."""
    head: NDArray[np.int16]
    """[F]."""
    span: ReferenceSpan
    prefixes: NDArray[np.int16]
    """[N, I, 2, num_slots]: texts of the conditional and of the unconditional row."""
    lengths: NDArray[np.int16]
    """[N, I], of the texts without padding."""


class EditPrefix(NamedTuple):
    """The two prefixes of one edit."""

    head: tuple[int, ...]
    span: ReferenceSpan
    texts: tuple[tuple[int, ...], tuple[int, ...]]
    """Conditional and unconditional."""


def edit_chunks(
    wanted: Sequence[tuple[Size, int]],
    seed: int,
    settings: EditSettings,
    *,
    num_workers: int = 1,
) -> Iterator[EditChunk]:
    """Yield the edits of each wanted (size, number), in order, a chunk at a time.

    None of them is held out. Many are made in `num_workers` spawned processes: a script that calls
    this needs `if __name__ == "__main__"`. Raises ConfigError where an edit has no instruction
    that fits the slots.
    """
    yield from run_tasks(partial(_make_chunk, seed=seed, settings=settings), wanted, num_workers)


def read_reference(
    pixels: NDArray[np.uint8], tokenizer: Tokenizer, config: ModelConfig
) -> tuple[ReferenceImage, ReferenceShape]:
    """Scale uint8 [H, W, 3] as the engine scales a reference image; returns it with its shape."""
    assert isinstance(config.vision, VisionConfig), "the checkpoint takes references"
    sizes = supported_sizes(tokenizer, config)
    image = scale_reference(pixels, sizes, config.vision)
    return image, reference_shape(image, sizes, config.vision)


def edit_prefix(
    tokenizer: Tokenizer, config: ModelConfig, prompt: str, size: Size, shape: ReferenceShape
) -> EditPrefix:
    """Return the prefixes of a prompt beside one reference image."""
    rows = prompt_rows(tokenizer, config, prompt, size, "instruct", (shape,))
    (span,) = rows.layout.references
    length = span.end + 1  # <eoi>
    conditional, unconditional = cut_prefixes(rows)
    assert conditional[:length] == unconditional[:length], "both rows see the reference"
    return EditPrefix(conditional[:length], span, (conditional[length:], unconditional[length:]))


def num_text_slots(tokenizer: Tokenizer, config: ModelConfig, num_slots: int, size: Size) -> int:
    """Return what a row of `num_slots` tokens leaves for the text beside pictures of `size`."""
    _, shape = read_reference(np.zeros((*size, 3), np.uint8), tokenizer, config)
    head, span, _ = edit_prefix(tokenizer, config, "x", size, shape)
    return num_slots - len(head) - 1 - span.latent_grid[0] * span.latent_grid[1]


def _make_chunk(task: Task, *, seed: int, settings: EditSettings) -> EditChunk:
    tokenizer, config = load_tokenizer(settings.folder)
    num, size = len(task.indices), task.size
    pixels = np.empty((num, 2, *size, 3), dtype=np.uint8)
    prefixes = np.empty((num, settings.num_instructions, 2, settings.num_slots), dtype=np.int16)
    lengths = np.empty((num, settings.num_instructions), dtype=np.int16)
    patches = []
    for at, index in enumerate(task.indices):
        draw = np.random.default_rng((seed, index, *size, settings.num_instructions))
        edit = random_edit(draw, size=size)
        pixels[at] = render(edit.source), render(edit.target)
        image, shape = read_reference(pixels[at, 0], tokenizer, config)
        patches.append(image.patch_pixels)
        for nth in range(settings.num_instructions):
            prefix = _prefix(edit, draw, settings, shape)
            pad = tokenizer.special.eoi
            prefixes[at, nth] = [padded_prefix(t, settings.num_slots, pad) for t in prefix.texts]
            lengths[at, nth] = len(prefix.texts[0])
    head = np.array(prefix.head, dtype=np.int16)
    return EditChunk(size, pixels, np.stack(patches), head, prefix.span, prefixes, lengths)


def _prefix(
    edit: Edit, draw: np.random.Generator, settings: EditSettings, shape: ReferenceShape
) -> EditPrefix:
    """Say an edit until the instruction fits."""
    tokenizer, config = load_tokenizer(settings.folder)
    size = (edit.source.height, edit.source.width)
    for _ in range(_MAX_TRIES):
        text = training_instruction(edit, draw)
        try:
            prefix = edit_prefix(tokenizer, config, text, size, shape)
        except InvalidRequestError:  # longer than the model's positions
            continue
        if len(prefix.texts[0]) <= settings.num_slots:
            return prefix
    raise ConfigError(
        "edit_slots",
        f"{_MAX_TRIES} instructions of one edit were all longer than {settings.num_slots} tokens",
        remedy="give rows more slots",
    )
