"""Parts of mapped files that are about to be read."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

_WILL_NEED = 3
"""MADV_WILLNEED of Linux."""


def read_ahead(part: Tensor) -> None:
    """Have the system begin to read what a view of a mapped file spans; does not wait for it.

    Left alone it reads a mapped file some pages at a time, each when it is touched: from a cold
    disk several times slower than the same bytes in order.
    """
    if not sys.platform.startswith("linux") or not part.numel():
        return
    last = sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
    start = part.data_ptr()
    end = start + (last + 1) * part.element_size()
    start -= start % mmap.PAGESIZE
    # Advice only: where it is not taken, reading is slower.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _WILL_NEED)
