"""What is said where the browser is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.browser import NAMES, find_browser
from kit.errors import UnsupportedError


def test_without_a_browser_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="apt-get install chromium"):
        find_browser()


@pytest.mark.parametrize("name", NAMES)
def test_any_of_the_names_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_browser() == str(path)
