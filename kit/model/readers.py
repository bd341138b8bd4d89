"""Threads that copy parts of mapped files to a device."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType

import torch
from torch import Tensor

_ON_CARDS = 4
_STAGE_BYTES = 1 << 25
_WILL_NEED = 3
"""MADV_WILLNEED of Linux."""

Pair = tuple[Tensor, Tensor]
"""Where a part goes, and its view of a mapped file; of one shape."""


class Readers:
    """The threads of one load; they end with its block.

    To a card several copy beside each other, through locked memory: the driver's own way from
    pageable memory is slower than reading a file. To other devices the caller's thread copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._stages: SimpleQueue[_Stage | None] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        if device.type != "cuda":
            self._stages.put(None)
            return
        for _ in range(_ON_CARDS):
            self._stages.put(_Stage(device))
        self._pool = ThreadPoolExecutor(
            _ON_CARDS, initializer=torch.cuda.set_device, initargs=(device,)
        )

    def __enter__(self) -> Readers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def copy(self, tensors: Iterable[list[Pair]]) -> Iterator[None]:
        """Copy the parts of tensors; yields after each tensor, in order."""
        if self._pool is None:
            return map(self._copy, tensors)
        return self._pool.map(self._copy, tensors)

    def _copy(self, pairs: list[Pair]) -> None:
        for _, part in pairs:
            read_ahead(part)
        stage = self._stages.get()
        try:
            # The caller's mode, which is its thread's own.
            with torch.inference_mode(pairs[0][0].is_inference()):
                for place, part in pairs:
                    if stage is None:
                        place.copy_(part)
                    else:
                        stage.copy(place, part)
        finally:
            self._stages.put(stage)


class _Stage:
    """Locked host memory on the way to a card."""

    def __init__(self, device: torch.device) -> None:
        # Twice what is meant to be in it: pieces are whole rows.
        self._memory = torch.empty(2 * _STAGE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream(device)

    def copy(self, place: Tensor, part: Tensor) -> None:
        count = 1 + int(part.nbytes / _STAGE_BYTES)
        for target, source in zip(place.chunk(count), part.chunk(count), strict=True):
            staged = self._memory[: source.nbytes].view(source.dtype).view(source.shape)
            staged.copy_(source)
            with torch.cuda.stream(self._stream):
                target.copy_(staged, non_blocking=True)
            self._stream.synchronize()


def read_ahead(part: Tensor) -> None:
    """Have the system begin to read what a view of a mapped file spans; does not wait for it.

    Left alone it reads a mapped file some pages at a time, each when it is touched: from a cold
    disk several times slower than the same bytes in order.
    """
    if not sys.platform.startswith("linux") or not part.numel():
        return
    start = part.data_ptr()
    end = part[(-1,) * part.dim()].data_ptr() + part.element_size()
    start -= start % mmap.PAGESIZE
    # Advice only: where it is not taken, reading is slower.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _WILL_NEED)
