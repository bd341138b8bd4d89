"""The folder that a training run keeps its state in, so that it can go on in another process.

Tensors lie in safetensors files of limited size. Optimizer momenta are not kept: they span some
twenty steps, and the learning rate warms up again in every piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from kit.errors import ConfigError

MAX_FILE_BYTES = 14 << 20


class StateFolder:
    """Reads and writes what the stages of a run leave behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        return self._note(name).exists()

    def drop(self, name: str) -> None:
        """Delete what one stage left, if there is anything."""
        self._note(name).unlink(missing_ok=True)
        for old in self._files(name):
            old.unlink()

    def save(self, name: str, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Replace the tensors and the JSON note of one stage; the note is written last."""
        self.drop(name)
        for at, chunk in enumerate(split_by_bytes(tensors, MAX_FILE_BYTES)):
            save_file(chunk, self.path / f"{name}-{at:02d}.safetensors")
        self._note(name).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")

    def load(self, name: str, *, made_by: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors (on the CPU) and note; raises ConfigError if they are not there yet."""
        if not self.has(name):
            raise ConfigError(
                "--state",
                f"there is no finished {name} in this folder",
                value=str(self.path),
                remedy=f"run the stage {made_by} first, to the end of its budget",
            )
        tensors: dict[str, Tensor] = {}
        for path in self._files(name):
            tensors |= load_file(path)
        note: dict[str, Any] = json.loads(self._note(name).read_text(encoding="utf-8"))
        return tensors, note

    def _note(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def _files(self, name: str) -> list[Path]:
        return sorted(self.path.glob(f"{name}-[0-9][0-9].safetensors"))


def split_by_bytes(tensors: Mapping[str, Tensor], limit: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in their order, in groups of at most `limit` bytes (one at least)."""
    group: dict[str, Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors.items():
        if group and num_bytes + tensor.nbytes > limit:
            yield group
            group, num_bytes = {}, 0
        group[name] = tensor.detach().cpu().contiguous()
        num_bytes += tensor.nbytes
    if group:
        yield group
