from __future__ import annotations

import math
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
        ("a: 1\n<<: [{bc: 1}, {bc: 2}]\n", 2, "<< takes one mapping", "<<: [{bc: 1}, {bc: 2}]"),
        ("a: 1\ntrue: 2\n", 2, "key True is no text", "true: 2"),
        ("? [a]\n: 1\n", 1, "is no text", "? [a]"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "no valid YAML", "c: 3"),
        ("a: 1\nb: c: 2\n", 2, "mapping values are not allowed", "b: c: 2"),
        ("a: *nobody\n", 1, "undefined alias", "a: *nobody"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, "could not determine", "b: !!python"),
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


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *((text, text) for text in ("010", "0x10", "0b1", "1_0", "+1", "1:30", ".5", "5.")),
        *((text, text) for text in ("yes", "No", "on", "OFF", "y", "tRUE", "inf", "2025-01-01")),
        ("1e3", 1000.0),
        ("-0.5E-1", -0.05),
        ("-7", -7),
        ("0", 0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("NULL", None),
        ("'7'", "7"),
    ],
)
def test_plain_values_are_read_as_yaml_1_2_and_json_do(
    write: Callable[..., Path], written: str, expected: object
) -> None:
    value = read_yaml(write(f"a: {written}\n"), "x.yaml")["a"]
    assert (type(value), value) == (type(expected), expected)
