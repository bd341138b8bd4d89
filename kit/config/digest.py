"""A resolved deployment as plain values, and their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from kit.config.deploy import DeployConfig, leaf_values

Value = str | int | float | bool | None


def setting_values(config: DeployConfig) -> dict[str, Value]:
    """Return every setting by its dotted name; who set it is left out.

    A list is its entries with commas between them.
    """
    values: dict[str, Value] = {}
    for name, value in leaf_values(config):
        if isinstance(value, tuple):
            value = ",".join(value)
        assert value is None or isinstance(value, (str, int, float)), f"{name} is a plain value"
        values[name] = value
    return values


def settings_hash(values: Mapping[str, Value]) -> str:
    """Return a sha256 (hex) that is equal for equal settings, whatever set them."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()
