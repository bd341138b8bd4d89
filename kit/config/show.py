"""A resolved deployment as text: a deploy file with the source of each value beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import yaml
from pydantic import BaseModel

from kit.config.deploy import DeployConfig


def describe(config: DeployConfig) -> str:
    """Return every value with its source, in the order of the schema.

    The text is a deploy file: loaded again it resolves to the same values.
    """
    rows: list[tuple[str, str | None]] = [
        (f"{name}: {_scalar(getattr(config, name))}", name) for name in ("pipeline", "dtype")
    ]
    rows.append(("stages:", None))
    for index, (text, dotted) in enumerate(_rows(config.stage, "stage.")):
        rows.append((f"{'    ' if index else '  - '}{text}", dotted))
    width = max(len(text) for text, dotted in rows if dotted)
    lines = [
        f"{text:<{width}}  # {_printable(config.provenance[dotted])}" if dotted else text
        for text, dotted in rows
    ]
    lines += [f"# warning: {_printable(warning)}" for warning in config.warnings]
    return "\n".join(lines) + "\n"


def _rows(model: BaseModel, prefix: str) -> Iterator[tuple[str, str | None]]:
    """Yield the lines of a mapping with the dotted field of each; None for a title."""
    for name, value in model:
        if isinstance(value, BaseModel):
            yield f"{name}:", None
            for text, dotted in _rows(value, f"{prefix}{name}."):
                yield f"  {text}", dotted
        else:
            yield f"{name}: {_scalar(value)}", f"{prefix}{name}"


def _scalar(value: object) -> str:
    # safe_dump ends a document that is one plain scalar with a line `...`.
    return (
        yaml.safe_dump(value, width=sys.maxsize, default_flow_style=True)
        .removesuffix("...\n")
        .rstrip("\n")
    )


def _printable(text: str) -> str:
    """Keep a comment on its line: a path may hold any character."""
    return "".join(char if char.isprintable() else "?" for char in text)
