"""The fingerprint of a model notices what it samples, and does not read the rest."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import CheckpointError
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import (
    BLOCK_BYTES,
    NUM_BLOCKS,
    SPEC_FILES,
    fingerprint_model,
    sample_offsets,
)

LAST = "model-0003-of-0003.safetensors"


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the golden checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def fingerprint(folder: Path) -> str:
    return fingerprint_model(CheckpointFiles.open(folder))


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_it_does_not_depend_on_the_folder(checkpoint: Path, folder: Path) -> None:
    assert fingerprint(folder) == fingerprint(checkpoint)


@pytest.mark.parametrize("block", range(1, NUM_BLOCKS))
def test_a_flipped_bit_in_a_sampled_block_is_noticed(
    checkpoint: Path, folder: Path, block: int
) -> None:
    shard = folder / LAST
    start = sample_offsets(shard.stat().st_size)[block]
    for offset in (start, start + BLOCK_BYTES - 1):
        flip(shard, offset)
        assert fingerprint(folder) != fingerprint(checkpoint)
        flip(shard, offset)
    assert fingerprint(folder) == fingerprint(checkpoint)


def test_a_flipped_bit_between_the_blocks_is_noticed_by_the_full_hash_only(
    checkpoint: Path, folder: Path
) -> None:
    first, second = sample_offsets((folder / LAST).stat().st_size)[1:3]
    flip(folder / LAST, (first + BLOCK_BYTES + second) // 2)
    assert fingerprint(folder) == fingerprint(checkpoint)
    ours, changed = CheckpointFiles.open(checkpoint), CheckpointFiles.open(folder)
    assert ours.fingerprint(contents=True) != changed.fingerprint(contents=True)


@pytest.mark.parametrize("name", SPEC_FILES)
def test_a_changed_small_file_is_noticed(checkpoint: Path, folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    assert fingerprint(folder) != fingerprint(checkpoint)


def test_a_missing_small_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        fingerprint(folder)


@given(st.integers(0, NUM_BLOCKS * BLOCK_BYTES))
def test_a_small_shard_is_read_whole(num_bytes: int) -> None:
    covered = [
        at
        for start in sample_offsets(num_bytes)
        for at in (start, min(start + BLOCK_BYTES, num_bytes))
    ]
    assert covered == sorted(covered)
    assert (covered or [0])[0] == 0
    assert (covered or [0])[-1] == num_bytes
    assert all(a == b for a, b in zip(covered[1::2], covered[2::2], strict=False))


@given(st.integers(NUM_BLOCKS * BLOCK_BYTES + 1, 1 << 40))
def test_a_large_shard_is_sampled_from_end_to_end(num_bytes: int) -> None:
    offsets = sample_offsets(num_bytes)
    assert len(offsets) == NUM_BLOCKS
    assert offsets[0] == 0
    assert offsets[-1] == num_bytes - BLOCK_BYTES
    gaps = [b - a for a, b in itertools.pairwise(offsets)]
    assert min(gaps) >= BLOCK_BYTES
    assert max(gaps) - min(gaps) <= 1
