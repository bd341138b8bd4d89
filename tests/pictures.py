"""What tests do with pictures that came over HTTP."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

from PIL import Image


def decode_b64(text: str) -> Image.Image:
    """Open a picture from base64, its pixels loaded."""
    image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
    image.load()
    return image


def decode_url(content: Any) -> Image.Image:
    """Open the picture of a message: a list with one data URL."""
    [part] = content
    head, _, data = part["image_url"]["url"].partition(",")
    image = decode_b64(data)
    assert head == f"data:image/{str(image.format).lower()};base64"
    return image


def events_of(text: str) -> list[tuple[str | None, Any]]:
    """Split a stream of server-sent events into (name, data); comments are left out."""
    events = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields:
            data = fields["data"]
            events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events
