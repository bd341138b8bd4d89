"""Free memory of the CPU platform."""

from __future__ import annotations

import psutil

from kit.platforms.cpu import CpuPlatform


def test_free_memory_is_positive_and_within_the_machine() -> None:
    free = CpuPlatform().free_memory_bytes()
    assert 0 < free <= psutil.virtual_memory().total
