"""Keeps the last pictures' files, byte for byte as the server wrote them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

MAX_BYTES = 128 << 20
"""Of all pages together; the oldest picture goes first."""


class Shelf:
    """Files by their SHA-256, which nobody can guess who has not seen the picture."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._files: OrderedDict[str, bytes] = OrderedDict()

    def put(self, data: bytes) -> str:
        """Keep a file and return its key."""
        key = hashlib.sha256(data).hexdigest()
        if key not in self._files:
            self._num_bytes += len(data)
        self._files[key] = data
        self._files.move_to_end(key)
        while self._num_bytes > self._max_bytes and len(self._files) > 1:
            _, oldest = self._files.popitem(last=False)
            self._num_bytes -= len(oldest)
        return key

    def get(self, key: str) -> bytes | None:
        """Return a file; None when it has gone."""
        return self._files.get(key)
