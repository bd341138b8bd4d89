"""What to write in place of the flags that other servers take for settings of the deploy file."""

from __future__ import annotations

from collections.abc import Mapping

from kit.config.foreign import FOREIGN_FIELDS
from kit.config.places import STAGE

# vLLM-Omni's flags whose names are not those of the field.
_OTHER_NAMES: Mapping[str, str] = {"usp": "ulysses_degree", "ring": "ring_degree"}


def explain(flag: str) -> str | None:
    """Return where a setting that was given as a flag belongs; None for a flag nobody has."""
    word = flag.removeprefix("--").partition("=")[0].replace("-", "_")
    name = _OTHER_NAMES.get(word, word)
    if name in FOREIGN_FIELDS:
        field = FOREIGN_FIELDS[name]
        return f"{flag}: {field.reason}; {field.remedy}"
    if name not in STAGE.own:
        return None
    where = f'--stage-overrides \'{{"0": {{"{name}": ...}}}}\''
    return (
        f"{flag}: is a setting of the deployment, not a flag; write {name} as {where} or in a file"
    )
