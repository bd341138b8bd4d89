"""How dataclasses that are read back from a file treat what they get."""

from __future__ import annotations

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown fields and wrong types are refused."""
