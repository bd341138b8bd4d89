"""The tree of errors in docs/architecture.md against kit/errors.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit import errors
from kit.errors import KitError

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, KitError)
}


def tree() -> dict[str, tuple[str, str]]:
    """Each error of the page with the one that it stands below and what is said of it."""
    block = re.search(r"```\n(KitError\n.+?)```", PAGE, re.DOTALL)
    assert block is not None
    found, above = dict[str, tuple[str, str]](), dict[int, str]()
    for line in block[1].splitlines():
        match = re.fullmatch(r"([│├└─ ]*)(\w+)(.*)", line)
        assert match is not None, line
        depth = len(match[1]) // 4
        above[depth] = match[2]
        found[match[2]] = (above.get(depth - 1, "Exception"), match[3])
    return found


def test_the_tree_is_that_of_the_classes() -> None:
    shown = {name: parent for name, (parent, _) in tree().items()}
    assert shown == {name: kind.__bases__[0].__name__ for name, kind in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
def test_codes_are_those_of_the_class(name: str) -> None:
    said = tree()[name][1]
    for number in re.findall(r"exit (\d+)", said):
        assert KINDS[name].exit_code == int(number)
    for number in re.findall(r"HTTP (\d+)", said):
        assert KINDS[name].http_status == int(number)
