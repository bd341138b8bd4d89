"""Two processes for all tests of this folder that want a group of two ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Processes, processes


@pytest.fixture(scope="package")
def two() -> Iterator[Processes]:
    with processes(2) as started:
        yield started
