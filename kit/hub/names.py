"""How a model of a hub is named: `owner/name`, or `owner/name@revision`."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Two parts without `--` (which separates them in names of folders) and without `..`; revisions are
# branches, tags or commits.
_MODEL_ID = re.compile(
    r"(?P<name>(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<revision>[\w][\w./+-]*))?",
    re.ASCII,
)
_MAX_LENGTH = 200


@dataclass(frozen=True)
class ModelId:
    """A model of a hub."""

    name: str
    """owner/name"""

    revision: str | None
    """Branch, tag or commit; None where none was named."""

    @property
    def folder_name(self) -> str:
        return self.name.replace("/", "--")

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def parse_model_id(text: str) -> ModelId | None:
    """Read a hub id; None when the text is none, so that it can only name a folder."""
    found = _MODEL_ID.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    return None if found is None else ModelId(found["name"], found["revision"])
