"""One YAML file, read strictly: no duplicate keys, text keys only, errors with their line."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from kit.errors import ConfigError
from kit.numerals import WRITTEN

_MERGE_TAG = "tag:yaml.org,2002:merge"


def read_yaml(path: Path, source: str, title: str = "deploy file") -> dict[str, object]:
    """Read the mapping that a file holds; `source` is how errors name the file, `title` its kind.

    Raises ConfigError: unreadable, no YAML, not a mapping at the top, or a key set twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            title,
            f"cannot be read: {error}",
            value=str(path),
            source=source,
            remedy="give a readable YAML file in UTF-8",
        ) from error
    try:
        content = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, source, title) from error
    except RecursionError as error:
        raise ConfigError(
            title,
            "is nested too deeply",
            value=str(path),
            source=source,
            remedy="no setting lies deeper than six levels",
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            title,
            "must hold a mapping at its top level",
            value=content,
            source=source,
            remedy="write one `name: value` per line",
        )
    return content


class _StrictLoader(yaml.SafeLoader):
    """Refuses the second of two equal keys; reads plain values as YAML 1.2 does, numbers as JSON.

    SafeLoader keeps the last key and reads YAML 1.1, where 010 is 8, 1:30 is 90, 1_0 is 10, 1e3 is
    a text, yes is true and 2025-01-01 is a date.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep=deep)
        # What the base class lets through for values such as 2025-13-01 or `!!bool x`.
        except (ValueError, LookupError, AttributeError) as error:
            raise yaml.constructor.ConstructorError(
                problem=f"value is malformed ({error})", problem_mark=node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        # Before the base class runs: it replaces `<<` by the keys that it merges in.
        for key_node, value_node in node.value:
            is_merge = key_node.tag == _MERGE_TAG
            # Of several, YAML lets the first one win, and PyYAML 6.0.4 mostly the last.
            if is_merge and isinstance(value_node, yaml.SequenceNode):
                raise yaml.constructor.ConstructorError(
                    problem="<< takes one mapping, not a list; merge one and write the rest out",
                    problem_mark=key_node.start_mark,
                )
            key = "<<" if is_merge else self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key!r} is no text; write it in quotes",
                    problem_mark=key_node.start_mark,
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key!r} is set twice in one mapping; keep one of them",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.yaml_implicit_resolvers = {}
for _name, _written, _first in (
    ("merge", "<<", "<"),
    ("null", "~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "-?(0|[1-9][0-9]*)", "-0123456789"),
    ("float", rf"{WRITTEN}|-?\.inf|\.nan", "-.0123456789"),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_written})\Z"), _first
    )


def _syntax_error(error: yaml.YAMLError, text: str, source: str, title: str) -> ConfigError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        index, problem = error.problem_mark.line, error.problem or error.context
    elif isinstance(error, yaml.reader.ReaderError):
        index, problem = text.count("\n", 0, error.position), error.reason
    else:
        index, problem = 0, str(error)
    lines = text.splitlines()
    return ConfigError(
        title,
        f"line {index + 1} is no valid YAML: {problem}",
        value=lines[index].strip() if index < len(lines) else "end of file",
        source=f"{source}, line {index + 1}",
        remedy="correct this line",
    )
