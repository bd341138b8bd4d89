"""Pictures with the token prefixes of their captions, made by worker processes.

A prefix is [0, P) of a row as `kit.tokenizer.template.build_rows` makes it, padded on the left.
This module and what it imports needs no torch, so that workers start fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kit.checkpoint.captions import training_caption
from kit.checkpoint.chunks import Size, Task, run_tasks
from kit.checkpoint.dataset import sample
from kit.checkpoint.scenes import Scene
from kit.errors import ConfigError, InvalidRequestError
from kit.modelspec.config import ModelConfig, load_model_config
from kit.request import Template
from kit.tokenizer.layout import Rows
from kit.tokenizer.template import ReferenceShape, build_rows
from kit.tokenizer.tokenizer import Tokenizer

_MAX_TRIES = 50


@dataclass(frozen=True)
class RowSettings:
    """How captions become rows."""

    folder: Path
    """Holds config.json and tokenizer.json."""

    num_slots: int
    """Tokens of a padded prefix."""

    num_captions: int
    share_instruct: float
    """How many are written in the instruct template."""


class Chunk(NamedTuple):
    """N pictures of one size with C captions each."""

    size: Size
    pixels: NDArray[np.uint8]
    """[N, height, width, 3], sRGB."""
    prefixes: NDArray[np.int16]
    """[N, C, 2, num_slots]: the conditional and the unconditional row's."""
    lengths: NDArray[np.int16]
    """[N, C], without padding."""


def training_chunks(
    wanted: Sequence[tuple[Size, int]],
    seed: int,
    settings: RowSettings,
    *,
    held_out: bool = False,
    num_workers: int = 1,
) -> Iterator[Chunk]:
    """Yield the pictures of each wanted (size, number), in order, a chunk at a time.

    Many are made in `num_workers` spawned processes: a script that calls this needs
    `if __name__ == "__main__"`. Raises ConfigError where a scene has no caption that fits the
    slots.
    """
    work = partial(_make_chunk, seed=seed, settings=settings, held_out=held_out)
    yield from run_tasks(work, wanted, num_workers)


def prefix_rows(
    tokenizer: Tokenizer,
    config: ModelConfig,
    prompt: str,
    size: Size,
    template: Template = "pretrain",
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the conditional and the unconditional prefix of a prompt."""
    return cut_prefixes(prompt_rows(tokenizer, config, prompt, size, template))


def prompt_rows(
    tokenizer: Tokenizer,
    config: ModelConfig,
    prompt: str,
    size: Size,
    template: Template,
    references: Sequence[ReferenceShape] = (),
) -> Rows:
    """Return both rows of a prompt without further texts."""
    return build_rows(
        tokenizer,
        config,
        prompt=prompt,
        system_prompt=None,
        cot_text=None,
        template=template,
        height=size[0],
        width=size[1],
        num_rows=2,
        drop_think=False,
        references=references,
    )


def cut_prefixes(rows: Rows) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the prefix of the conditional and of the unconditional row."""
    conditional, unconditional = (ids[: rows.layout.prefix_len] for ids in rows.token_ids)
    return conditional, unconditional


def padded_prefix(ids: Sequence[int], num_slots: int, pad: int) -> list[int]:
    """Return `num_slots` ids that end with the given ones."""
    return [pad] * (num_slots - len(ids)) + list(ids)


def _make_chunk(task: Task, *, seed: int, settings: RowSettings, held_out: bool) -> Chunk:
    num, captions, slots = len(task.indices), settings.num_captions, settings.num_slots
    pixels = np.empty((num, *task.size, 3), dtype=np.uint8)
    prefixes = np.empty((num, captions, 2, slots), dtype=np.int16)
    lengths = np.empty((num, captions), dtype=np.int16)
    for at, index in enumerate(task.indices):
        made = sample(index, seed, size=task.size, num_captions=0, held_out=held_out)
        pixels[at] = made.pixels
        draw = np.random.default_rng((seed, index, *task.size, held_out, captions))
        for nth in range(captions):
            pair, lengths[at, nth] = _caption_prefixes(made.scene, draw, settings)
            prefixes[at, nth] = pair
    return Chunk(task.size, pixels, prefixes, lengths)


def _caption_prefixes(
    scene: Scene, draw: np.random.Generator, settings: RowSettings
) -> tuple[list[list[int]], int]:
    """Caption a scene until the caption fits; return both padded prefixes and their length."""
    tokenizer, config = load_tokenizer(settings.folder)
    template: Template = "instruct" if draw.random() < settings.share_instruct else "pretrain"
    num_slots = settings.num_slots
    for _ in range(_MAX_TRIES):
        text = training_caption(scene, draw).text
        try:
            pair = prefix_rows(tokenizer, config, text, (scene.height, scene.width), template)
        except InvalidRequestError:  # longer than the model's positions
            continue
        if len(pair[0]) <= num_slots:
            # What a padded slot holds does not matter: no query reads it.
            pad = tokenizer.special.eoi
            return [padded_prefix(ids, num_slots, pad) for ids in pair], len(pair[0])
    raise ConfigError(
        "sequence_slots",
        f"{_MAX_TRIES} captions of one scene were all longer than {num_slots} tokens",
        remedy="give rows more slots or the vocabulary more tokens",
    )


@cache
def load_tokenizer(folder: Path) -> tuple[Tokenizer, ModelConfig]:
    """Read tokenizer and config of a folder, once in a process."""
    config = load_model_config(folder)
    return Tokenizer.from_folder(folder, config), config
