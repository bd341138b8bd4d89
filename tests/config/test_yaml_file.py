from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.config.yaml_file import read_yaml
from kit.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "line", "expected", "echoed"),
    [
        ("a: 1\na: 1\n", 2, "key 'a' is set twice", "a: 1"),
        ("a:\n  - x: 1\n    y: 2\n    x: 1\n", 4, "key 'x' is set twice", "x: 1"),
        ("a: &m {x: 1}\nb:\n  <<: *m\n  <<: *m\n", 4, "key '<<' is set twice", "<<: *m"),
        ("a: 1\n0: 2\n", 2, "key 0 is no text", "0: 2"),
        ("a: 1\non: 2\n", 2, "key True is no text", "on: 2"),
        ("? [a]\n: 1\n", 1, "is no text", "? [a]"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "no valid YAML", "c: 3"),
        ("a: 1\nb: c: 2\n", 2, "mapping values are not allowed", "b: c: 2"),
        ("a: *nobody\n", 1, "undefined alias", "a: *nobody"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, "could not determine", "b: !!python"),
        ("a: 1\nb: 2025-13-01\n", 2, "malformed", "b: 2025-13-01"),
        ("a: !!bool perhaps\n", 1, "malformed", "a: !!bool perhaps"),
        ("a: 1\nb: \x07\n", 2, "special characters are not allowed", "b: "),
        ("a: [1,", 1, "no valid YAML", "a: [1,"),
        ("a: 1\n---\nb: 1\n", 2, "another document", "---"),
    ],
)
def test_damage_is_named_with_its_line(
    write: Callable[..., Path], text: str, line: int, expected: str, echoed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(write(text), "x.yaml")
    message = str(caught.value)
    assert expected in message
    assert f"line {line} is no valid YAML" in message
    assert f"set by x.yaml, line {line})" in message
    assert echoed in str(caught.value.value)
    assert "correct this line" in message


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "text\n", "3\n"])
def test_top_level_must_be_a_mapping(write: Callable[..., Path], text: str) -> None:
    with pytest.raises(ConfigError, match=r"must hold a mapping .* set by x\.yaml"):
        read_yaml(write(text), "x.yaml")


def test_deep_nesting_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_yaml(write("a: " + "[" * 1000), "x.yaml")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: ä".encode("latin-1"))
    for path in (latin, tmp_path, tmp_path / "absent.yaml"):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            read_yaml(path, "x.yaml")
        assert caught.value.value == str(path)


def test_merge_keys_yield_to_explicit_ones(write: Callable[..., Path]) -> None:
    path = write("a: &m {x: 1, y: 2}\nb:\n  <<: *m\n  y: 3\n")
    assert read_yaml(path, "x.yaml")["b"] == {"x": 1, "y": 3}
