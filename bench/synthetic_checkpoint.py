"""A checkpoint of any shape whose weights are noise, and what reading its files costs."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from kit.modelspec.config import parse_model_config
from kit.modelspec.files import INDEX_NAME
from kit.modelspec.tensors import TensorSpec, expected_tensors

_BLOCK = 1 << 24
_ELEMENT_BYTES = 2
_REST, _VAE = "model-rest.safetensors", "model-vae.safetensors"


def write_checkpoint(folder: Path, raw_config: Mapping[str, object]) -> list[Path]:
    """Write config.json, the index and one file a layer; return the files that a denoiser needs.

    Every weight is stored in bfloat16, of random bits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw_config))
    files: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in expected_tensors(parse_model_config(dict(raw_config))).items():
        if spec.needed_for_t2i:
            files.setdefault(_file_of(name), {})[name] = spec
    index = {name: file for file, specs in files.items() for name in specs}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": index}))
    for file, specs in files.items():
        _write(folder / file, specs)
    return [folder / file for file in files if file != _VAE]


def read_in_order(paths: Iterable[Path]) -> tuple[int, float]:
    """Read files from beginning to end into one block of memory: their bytes, and the seconds."""
    block, total = bytearray(_BLOCK), 0
    started = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(block):
                total += got
    return total, time.perf_counter() - started


def evict(paths: Iterable[Path]) -> None:
    """Have the system forget what it keeps of files in memory."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _file_of(name: str) -> str:
    if name.startswith("vae."):
        return _VAE
    parts = name.split(".")
    return f"model-layer-{parts[2]}.safetensors" if parts[1] == "layers" else _REST


def _write(path: Path, specs: Mapping[str, TensorSpec]) -> None:
    header, end = {}, 0
    for name, spec in specs.items():
        size = _ELEMENT_BYTES
        for length in spec.shape:
            size *= length
        offsets = [end, end + size]
        header[name] = {"dtype": "BF16", "shape": list(spec.shape), "data_offsets": offsets}
        end += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    noise = os.urandom(_BLOCK)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for at in itertools.count(0, _BLOCK):
            if at >= end:
                break
            file.write(noise[: end - at])
        file.flush()
        os.fsync(file.fileno())
