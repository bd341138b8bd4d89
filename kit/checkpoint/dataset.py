"""Captioned pictures by index: the same index and seed give the same sample.

Another version of numpy may draw other random numbers; another processor may round a pixel by one.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kit.checkpoint.captions import training_caption
from kit.checkpoint.render import render
from kit.checkpoint.scenes import Scene, check_canvas, random_scene

T = TypeVar("T")

NUM_CAPTIONS = 8

_CHUNK = 64


class Sample(NamedTuple):
    """One picture with several captions of it."""

    pixels: NDArray[np.uint8]
    """[height, width, 3], sRGB."""
    captions: tuple[str, ...]
    scene: Scene


def sample(
    index: int,
    seed: int,
    *,
    size: tuple[int, int],
    num_captions: int = NUM_CAPTIONS,
    held_out: bool = False,
) -> Sample:
    """Make one sample of `size` (height, width).

    Training samples contain no held-out combination; with `held_out` each contains one. Raises
    ConfigError for a size that scenes cannot be made for.
    """
    check_canvas(*size)
    draw = np.random.default_rng((seed, index, *size, held_out))
    scene = random_scene(draw, size=size, held_out=held_out)
    captions = tuple(training_caption(scene, draw).text for _ in range(num_captions))
    return Sample(render(scene), captions, scene)


def map_chunks(work: Callable[[range], T], num: int, num_workers: int) -> Iterator[T]:
    """Yield the results of `work` for the ranges that make up 0 to num - 1, in their order.

    More than one worker means spawned processes, to which `work` is pickled.
    """
    chunks = [range(at, min(at + _CHUNK, num)) for at in range(0, num, _CHUNK)]
    if num_workers <= 1:
        yield from map(work, chunks)
        return
    # A fork would copy the locks of the caller's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        yield from pool.map(work, chunks)
