"""Where the packaged deploy files and model overlays lie."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

import kit


def configs_folder() -> Path:
    """Return the folder that holds `deploy/` and `model/`.

    A wheel carries it inside the package, a source tree beside it.
    """
    package = Path(kit.__file__).parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def packaged_file(kind: str, name: str) -> Path | None:
    """Find a packaged file by its bare name, with or without `.yaml`; `kind` is its folder."""
    if Path(name).name != name:
        return None
    path = configs_folder() / kind / f"{name.removesuffix('.yaml')}.yaml"
    return path if isfile(path) else None


def packaged_names(kind: str) -> list[str]:
    """Bare names of all packaged files of a kind, sorted."""
    return sorted(path.stem for path in (configs_folder() / kind).glob("*.yaml"))
