"""The URL of the hub, looked at before huggingface_hub is imported: of some it fails by itself."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from kit.errors import ConfigError

_VARIABLE = "HF_ENDPOINT"


def check_endpoint() -> None:
    """Raise ConfigError for an HF_ENDPOINT that is no URL; an empty one means none."""
    url = os.environ.get(_VARIABLE)
    if url and not is_server_url(url):
        raise ConfigError(
            _VARIABLE,
            "is no URL of a hub",
            value=url,
            source="the environment",
            remedy="write it as https://hub.example.org, or leave it out",
        )


def is_server_url(text: str) -> bool:
    """Whether a text is the http or https URL of a host, with a port that exists."""
    try:
        parts = urlsplit(text)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
    return is_server and not any(letter.isspace() for letter in text)
