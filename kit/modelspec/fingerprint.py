"""A hash that tells checkpoints apart, cheap enough for every start."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kit.errors import CheckpointError
from kit.modelspec.files import CheckpointFiles

SPEC_FILES = ("config.json", "generation_config.json", "tokenizer.json")
"""What the kit reads beside the weights; each is hashed whole."""

NUM_BLOCKS = 16
BLOCK_BYTES = 4096


def fingerprint_model(files: CheckpointFiles) -> str:
    """Return a sha256 (hex) of what a checkpoint draws with; it does not depend on its folder.

    It covers every byte of SPEC_FILES, the layout (name, dtype and shape of every tensor, name and
    size of every shard) and of each shard NUM_BLOCKS blocks of BLOCK_BYTES, the first and the last
    included; a shard of at most 64 KiB whole. Reading every byte of 160 GB would take minutes.
    A change of weights between the blocks alone is not noticed: retrained, merged or quantised
    weights are, a single edited tensor may not be. `CheckpointFiles.fingerprint(contents=True)`
    reads everything.

    Raises CheckpointError where a file cannot be read.
    """
    digest = hashlib.sha256(files.fingerprint().encode())
    try:
        for name in SPEC_FILES:
            digest.update(_entry(name, (files.folder / name).read_bytes()))
        for path, num_bytes in sorted(files.shard_bytes.items()):
            digest.update(_entry(path.relative_to(files.folder).as_posix(), b""))
            with path.open("rb") as shard:
                for offset in sample_offsets(num_bytes):
                    shard.seek(offset)
                    digest.update(shard.read(BLOCK_BYTES))
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {files.folder}: {Path(str(error.filename)).name} cannot be read: "
            f"{error.strerror}"
        ) from error
    return digest.hexdigest()


def sample_offsets(num_bytes: int) -> list[int]:
    """Where the blocks of a shard begin: evenly spread, the first and the last included."""
    if num_bytes <= NUM_BLOCKS * BLOCK_BYTES:
        return list(range(0, num_bytes, BLOCK_BYTES))
    last = num_bytes - BLOCK_BYTES
    return [last * i // (NUM_BLOCKS - 1) for i in range(NUM_BLOCKS)]


def _entry(name: str, content: bytes) -> bytes:
    """Name and length go first, so that bytes cannot move from one file to the next unnoticed."""
    return f"{name}\0{len(content)}\0".encode() + content
