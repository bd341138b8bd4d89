"""Runs the making of training data in worker processes, a chunk of pictures at a time."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]
"""(height, width) in pixels."""

_CHUNK = 128
_WORTH_WORKERS = 1000
_CHUNKS_AHEAD = 2
_MEMORY = Path("/dev/shm")


class Chunk(Protocol):
    """A named tuple that holds pixels beside other fields."""

    @property
    def pixels(self) -> NDArray[np.uint8]: ...


C = TypeVar("C", bound=Chunk)


@dataclass(frozen=True)
class Task:
    """The pictures of one chunk, all of one size."""

    size: Size
    indices: range


def run_tasks(
    work: Callable[[Task], C], wanted: Sequence[tuple[Size, int]], num_workers: int
) -> Iterator[C]:
    """Yield what `work` makes of the pictures of each wanted (size, number), in order.

    Many are made in `num_workers` spawned processes, to which `work` is pickled.
    """
    tasks = [
        Task(size, range(at, min(at + _CHUNK, num)))
        for size, num in wanted
        for at in range(0, num, _CHUNK)
    ]
    if num_workers <= 1 or sum(num for _, num in wanted) < _WORTH_WORKERS:
        yield from map(work, tasks)
    else:
        yield from _in_processes(work, tasks, num_workers)


def _in_processes(work: Callable[[Task], C], tasks: Sequence[Task], num: int) -> Iterator[C]:
    """Yield what `work` makes of each task, in order.

    Pixels come through files in memory, several times as fast as through the pool's pipes.
    """
    # A fork would copy the locks of the caller's threads.
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[tuple[C, Path]]] = deque()
    ahead = iter(tasks)
    with (
        tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder,
        ProcessPoolExecutor(num, mp_context=context) as pool,
    ):
        while True:
            while len(waiting) < num * _CHUNKS_AHEAD and (task := next(ahead, None)) is not None:
                waiting.append(pool.submit(_with_file, work, task, Path(folder)))
            if not waiting:
                return
            chunk, file = waiting.popleft().result()
            yield _with_pixels(chunk, np.load(file))
            file.unlink()


def _with_file(work: Callable[[Task], C], task: Task, folder: Path) -> tuple[C, Path]:
    """Make a chunk; its pixels are written to a file and left out."""
    chunk = work(task)
    height, width = task.size
    file = folder / f"{height}x{width}-{task.indices.start}.npy"
    np.save(file, chunk.pixels)
    return _with_pixels(chunk, chunk.pixels[:0]), file


def _with_pixels(chunk: C, pixels: NDArray[np.uint8]) -> C:
    replaced: C = cast(Any, chunk)._replace(pixels=pixels)
    return replaced
