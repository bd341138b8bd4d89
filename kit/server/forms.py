"""Multipart forms as OpenAI's clients write them: `key[]` for lists, `key[sub]` for objects."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.routing import APIRoute
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.routing import Match
from starlette.types import Scope

from kit.errors import InvalidRequestError

_NAME = re.compile(r"(?P<name>[^\[\]]+)(?P<brackets>\[(?P<key>[^\[\]]*)\])?")


class FormRoute(APIRoute):
    """Takes forms only; other bodies are left to the next route of the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if is_form(Headers(scope=scope)) else (Match.NONE, {})


def is_form(headers: Headers) -> bool:
    """Whether a body says that it is a multipart form."""
    return headers.get("content-type", "").lower().startswith("multipart/form-data")


@dataclass(frozen=True)
class Form:
    """A form in two heaps."""

    files: dict[str, list[UploadFile]]
    """Every name of a file that the endpoint takes, in the order of the form."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Text, lists of text, or objects of text; an UploadFile where a file has another name."""


def read_form(data: FormData, *, files: Sequence[str]) -> Form:
    """Sort the parts of a form; raises InvalidRequestError naming the field."""
    form = Form({name: [] for name in files})
    for written, value in data.multi_items():
        match = _NAME.fullmatch(written)
        if match is None:
            raise InvalidRequestError(
                f"{written!r:.100} is no name of a field; write key, key[] or key[sub]",
                param=written[:100],
            )
        name, key = match["name"], match["key"]
        if name in files and isinstance(value, str):
            raise InvalidRequestError(f"{name}: got text, expected a file", param=name)
        if name in files and key:
            raise InvalidRequestError(
                f"{name}: got {written!r:.100}, files have no keys; write {name}, or {name}[] for "
                f"each of several",
                param=name,
            )
        if isinstance(value, UploadFile):
            if name in files:
                form.files[name].append(value)
            else:
                form.fields[name] = value
        elif not match["brackets"]:
            if name in form.fields:
                raise InvalidRequestError(f"{name:.100}: is given twice", param=name[:100])
            form.fields[name] = value
        else:
            _add(form.fields, name, key, value)
    return form


def from_text(text: Any) -> Any:
    """Read the value of a field without a type of its own: JSON, or else the text as it is."""
    if not isinstance(text, str) or text != text.strip():
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _add(fields: dict[str, Any], name: str, key: str, value: str) -> None:
    """Add an element of a list (empty key) or of an object."""
    kept = fields.setdefault(name, {} if key else [])
    if isinstance(kept, list) and not key:
        kept.append(value)
    elif isinstance(kept, dict) and key and key not in kept:
        kept[key] = value
    else:
        raise InvalidRequestError(f"{name:.100}: is given in two ways", param=name[:100])
