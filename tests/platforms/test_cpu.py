"""Free memory of the CPU platform."""

from __future__ import annotations

import psutil

from kit.platforms.cpu import CpuPlatform


def test_free_memory_is_positive_and_within_the_machine() -> None:
    free = CpuPlatform().memory().free_bytes
    assert 0 < free <= psutil.virtual_memory().total


def test_peak_memory_holds_what_was_taken_and_given_back() -> None:
    before = CpuPlatform().peak_memory_bytes()
    assert before >= psutil.Process().memory_info().rss * 0.5
    num_bytes = 64 << 20
    block = bytearray(b"\x01") * num_bytes
    del block
    assert CpuPlatform().peak_memory_bytes() >= max(before, num_bytes)
