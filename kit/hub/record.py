"""What `kit fetch` writes beside the files of a checkpoint: where they are from, what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError, with_config

from kit.errors import HubError
from kit.telemetry.strict import STRICT

RECORD_NAME = "kit_fetch.json"

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class FileFacts:
    """One file as the hub lists it."""

    num_bytes: int
    sha256: str | None
    """Of its bytes; None for a small file, which the hub keeps in git itself."""

    git_sha1: str | None
    """Git's id of a small file's content: a sha1 over its length and its bytes."""


@with_config(STRICT)
@dataclass(frozen=True)
class FetchRecord:
    """One commit of a model."""

    format: Literal["kit.fetch/1"]
    model: str
    """owner/name"""

    revision: str
    """What was asked for: a branch, a tag or the commit."""

    commit: str
    files: Mapping[str, FileFacts]
    """By path inside the repository."""

    @property
    def num_bytes(self) -> int:
        return sum(facts.num_bytes for facts in self.files.values())


_RECORD = TypeAdapter(FetchRecord)


def read_record(path: Path) -> FetchRecord | None:
    """Read a record; None when there is no such file. Raises HubError when it is damaged."""
    try:
        return _RECORD.validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'its content'}: {first['msg']}"
        raise HubError(
            f"{path} is no record of kit fetch ({reason}); remove its folder and run `kit fetch` "
            f"again"
        ) from error


def write_record(path: Path, record: FetchRecord) -> None:
    """Write a record; equal records give equal bytes."""
    path.write_text(json.dumps(asdict(record), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def damage(path: Path, facts: FileFacts) -> str | None:
    """Read a whole file; returns how it differs from what the hub lists, or None."""
    got = path.stat().st_size
    if got != facts.num_bytes:
        return f"{facts.num_bytes} bytes expected, {got} there"
    if facts.sha256 is not None:
        kind, wanted, digest = "sha256", facts.sha256, hashlib.sha256()
    else:
        # Git's hash of a blob; it finds damage, it is no defence against a forger.
        assert facts.git_sha1 is not None, "a file without sha256 has git's id"
        kind, wanted = "git sha1", facts.git_sha1
        digest = hashlib.sha1(b"blob %d\0" % got, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != wanted:
        return f"{kind} {wanted} expected, {digest.hexdigest()} found"
    return None
