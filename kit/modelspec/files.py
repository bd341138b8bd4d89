"""The safetensors files of a checkpoint folder, read by their headers alone.

A shard is eight bytes of header length (little-endian), a JSON header, then the tensors' bytes
without gaps; `data_offsets` count from the end of the header (safetensors file format).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeGuard

from kit.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# Bytes per element of the storage dtypes that the format names.
DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
        **dict.fromkeys(("U32", "I32", "F32"), 4),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
    }
)

_MAX_PROBLEMS_LISTED = 10
# The limit of the safetensors library; a longer header is a damaged or foreign file.
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_LFS_POINTER = b"version https://git-lfs"
_HASH_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class TensorEntry:
    """What a shard's header says of one tensor."""

    name: str
    dtype: str
    """Storage dtype as the format spells it, e.g. BF16."""

    shape: tuple[int, ...]
    path: Path
    """The shard that holds it."""

    num_bytes: int


@dataclass(frozen=True)
class CheckpointFiles:
    """A complete set of shards: every tensor of the index is where the index says it is."""

    folder: Path
    tensors: Mapping[str, TensorEntry]
    """Every tensor of the index, by name."""

    shard_bytes: Mapping[Path, int]
    """Size of every shard file, header included."""

    @classmethod
    def open(cls, folder: Path) -> CheckpointFiles:
        """Read the index and all headers of `folder`; no tensor is loaded.

        Raises CheckpointError with every problem found: folder or index missing, shards missing,
        truncated or damaged, tensors that are not in their shard.
        """
        if not isdir(folder):
            raise CheckpointError(
                f"checkpoint folder {folder} does not exist or is no folder; "
                f"give the folder that holds config.json and the weights"
            )
        problems: list[str] = []
        weight_map = _read_weight_map(folder, problems)
        shard_names = [SINGLE_NAME] if weight_map is None else sorted(set(weight_map.values()))
        present = _present_shards(folder, shard_names, problems)
        shards: dict[str, dict[str, TensorEntry]] = {}
        for shard in present:
            entries = _read_shard(folder / shard, shard, problems)
            if entries is not None:
                shards[shard] = entries
        if weight_map is None:
            weight_map = {name: shard for shard in shards for name in shards[shard]}
        tensors = _collect(weight_map, shards, problems)
        if problems:
            raise checkpoint_error(folder, problems)
        sizes = {folder / shard: (folder / shard).stat().st_size for shard in present}
        return cls(folder, MappingProxyType(tensors), MappingProxyType(sizes))

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as stored, without headers."""
        return sum(entry.num_bytes for entry in self.tensors.values())

    def fingerprint(self, *, contents: bool = False) -> str:
        """Return a sha256 (hex) that identifies the files' layout.

        It covers name, dtype and shape of every tensor and name and size of every shard: two
        checkpoints of one model with different weights have the same one. With `contents` the
        bytes of the shards are hashed too, which reads the whole checkpoint.
        """
        digest = hashlib.sha256()
        for name, entry in sorted(self.tensors.items()):
            digest.update(json.dumps([name, entry.dtype, entry.shape]).encode())
        for path, num_bytes in sorted(self.shard_bytes.items()):
            digest.update(
                json.dumps([path.relative_to(self.folder).as_posix(), num_bytes]).encode()
            )
            if contents:
                with path.open("rb") as file:
                    while chunk := file.read(_HASH_CHUNK_BYTES):
                        digest.update(chunk)
        return digest.hexdigest()


def checkpoint_error(folder: Path, problems: Sequence[str]) -> CheckpointError:
    """Return one error that lists the first problems of `folder` and counts the rest."""
    lines = [f"  {problem}" for problem in problems[:_MAX_PROBLEMS_LISTED]]
    if len(problems) > _MAX_PROBLEMS_LISTED:
        lines.append(f"  and {len(problems) - _MAX_PROBLEMS_LISTED} more")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return CheckpointError("\n".join([f"checkpoint {folder} has {count}:", *lines]))


def _read_weight_map(folder: Path, problems: list[str]) -> dict[str, str] | None:
    """Return tensor name -> shard name, without bad entries; None for a single-file checkpoint."""
    path = folder / INDEX_NAME
    if not path.exists():
        if (folder / SINGLE_NAME).exists():
            return None
        raise checkpoint_error(
            folder, [f"neither {INDEX_NAME} nor {SINGLE_NAME} is there; download the checkpoint"]
        )
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise checkpoint_error(folder, [f"{INDEX_NAME} cannot be read: {error}"]) from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise checkpoint_error(folder, [f"{INDEX_NAME} has no `weight_map` with tensors"])
    kept: dict[str, str] = {}
    refused: set[str] = set()
    for name, shard in weight_map.items():
        if isinstance(shard, str) and _is_inside(shard):
            kept[name] = shard
        elif repr(shard) not in refused:
            refused.add(repr(shard))
            problems.append(f"{INDEX_NAME}: {name} points outside the folder: {shard!r}")
    return kept


def _is_inside(shard: str) -> bool:
    """Judge the spelling only: download caches link shards to files outside the folder."""
    path = PurePosixPath(shard)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _present_shards(folder: Path, shard_names: list[str], problems: list[str]) -> list[str]:
    present = [shard for shard in shard_names if isfile(folder / shard)]
    problems += [
        f"shard {shard} is missing ({len(present)} of {len(shard_names)} are there); "
        f"download it again"
        for shard in shard_names
        if shard not in present
    ]
    return present


def _read_shard(path: Path, shard: str, problems: list[str]) -> dict[str, TensorEntry] | None:
    """Return the tensors of a shard, or None after noting why its header cannot be trusted."""
    try:
        header, start = _read_header(path)
        entries, end = _parse_header(header, path)
    except (OSError, _DamagedError, ValueError, RecursionError) as error:
        problems.append(f"shard {shard}: {error}")
        return None
    wanted, got = start + end, path.stat().st_size
    if got < wanted:
        problems.append(
            f"shard {shard} is truncated: {wanted} bytes wanted, {got} there; download it again"
        )
    elif got > wanted:
        problems.append(f"shard {shard} has {got} bytes, its header accounts for {wanted}")
    return entries


class _DamagedError(Exception):
    """Why a header cannot be trusted."""


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the JSON header and the offset at which the tensors start."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(len(_LFS_POINTER))
        if head == _LFS_POINTER:
            raise _DamagedError("is a Git LFS pointer, not the weights; run `git lfs pull`")
        if size < _LENGTH_BYTES:
            raise _DamagedError(f"is truncated: {size} bytes cannot hold a header")
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if length > _MAX_HEADER_BYTES:
            raise _DamagedError(
                f"header length {length} is absurd (limit {_MAX_HEADER_BYTES} bytes); "
                f"this is no safetensors file"
            )
        if _LENGTH_BYTES + length > size:
            raise _DamagedError(
                f"is truncated inside its header: {_LENGTH_BYTES + length} bytes wanted, "
                f"{size} there; download it again"
            )
        file.seek(_LENGTH_BYTES)
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"header is unreadable: {error}") from error
    if not isinstance(header, dict):
        raise _DamagedError(f"header must be a JSON object, got {type(header).__name__}")
    header.pop("__metadata__", None)
    return header, _LENGTH_BYTES + length


def _parse_header(header: dict[str, Any], path: Path) -> tuple[dict[str, TensorEntry], int]:
    """Return the tensors and the end of the last one; their bytes must follow without gaps."""
    entries: dict[str, TensorEntry] = {}
    extents: list[tuple[int, int, str]] = []
    for name, raw in header.items():
        if not isinstance(raw, dict):
            raise _DamagedError(f"header entry {name} is no object")
        dtype, shape, offsets = raw.get("dtype"), raw.get("shape"), raw.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            raise _DamagedError(f"{name} has the unknown dtype {dtype!r}")
        if not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2:
            raise _DamagedError(f"{name} has shape {shape!r} and data_offsets {offsets!r}")
        num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
        if offsets[1] - offsets[0] != num_bytes:
            raise _DamagedError(
                f"{name} is {dtype} {shape}, {num_bytes} bytes, but data_offsets are {offsets}"
            )
        entries[name] = TensorEntry(name, dtype, tuple(shape), path, num_bytes)
        extents.append((offsets[0], offsets[1], name))
    end = 0
    for begin, stop, name in sorted(extents):
        if begin != end:
            raise _DamagedError(
                f"{name} begins at byte {begin}, the tensor before it ends at {end}"
            )
        end = stop
    return entries, end


def _is_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _collect(
    weight_map: Mapping[str, str],
    shards: Mapping[str, Mapping[str, TensorEntry]],
    problems: list[str],
) -> dict[str, TensorEntry]:
    """Look every tensor of the index up in its shard; unreadable shards were reported before."""
    tensors: dict[str, TensorEntry] = {}
    for name, shard in weight_map.items():
        if shard not in shards:
            continue
        entry = shards[shard].get(name)
        if entry is None:
            problems.append(f"tensor {name} is not in shard {shard}, where {INDEX_NAME} puts it")
        else:
            tensors[name] = entry
    return tensors
