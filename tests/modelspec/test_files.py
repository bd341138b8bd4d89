"""A checkpoint folder is complete, or one error says everything that is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from kit.errors import CheckpointError
from kit.modelspec.files import INDEX_NAME, SINGLE_NAME, CheckpointFiles

FIRST, SECOND, LAST = (f"model-000{i}-of-0003.safetensors" for i in (1, 2, 3))


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the golden checkpoint that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        CheckpointFiles.open(folder)
    return str(caught.value)


def pack(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def single(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / SINGLE_NAME).write_bytes(content)
    return tmp_path


def edit_index(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    edit(index)
    (folder / INDEX_NAME).write_text(json.dumps(index))


def test_entries_against_safetensors(checkpoint: Path) -> None:
    files = CheckpointFiles.open(checkpoint)
    index = json.loads((checkpoint / INDEX_NAME).read_text())
    assert set(files.tensors) == set(index["weight_map"])
    assert files.total_bytes == index["metadata"]["total_size"]
    assert {path.name for path in files.shard_bytes} == {FIRST, SECOND, LAST}
    for path, num_bytes in files.shard_bytes.items():
        assert num_bytes == path.stat().st_size
        with safe_open(path, framework="np") as shard:
            for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                entry, oracle = files.tensors[name], shard.get_slice(name)
                assert entry.name == name
                assert entry.path == path
                assert list(entry.shape) == oracle.get_shape()
                assert entry.dtype == oracle.get_dtype()


def test_single_file_checkpoint(tmp_path: Path) -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "a": np.zeros((2, 3), np.float32),
        "b": np.zeros((), np.int64),
    }
    save_file(tensors, tmp_path / SINGLE_NAME, metadata={"format": "np"})
    files = CheckpointFiles.open(tmp_path)
    assert {n: (e.dtype, e.shape, e.num_bytes) for n, e in files.tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("I64", (), 8),
    }


def test_shards_may_be_links_into_a_download_cache(folder: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    (folder / SECOND).rename(blob)
    (folder / SECOND).symlink_to(blob)
    assert CheckpointFiles.open(folder).shard_bytes[folder / SECOND] == blob.stat().st_size


def test_fingerprint_follows_layout_and_on_request_contents(folder: Path) -> None:
    files = CheckpointFiles.open(folder)
    layout, contents = files.fingerprint(), files.fingerprint(contents=True)
    raw = bytearray((folder / SECOND).read_bytes())
    raw[-1] ^= 1
    (folder / SECOND).write_bytes(raw)
    changed = CheckpointFiles.open(folder)
    assert changed.fingerprint() == layout
    assert changed.fingerprint(contents=True) != contents
    edit_index(folder, lambda index: index["weight_map"].pop("lm_head.weight"))
    assert CheckpointFiles.open(folder).fingerprint() != layout


def test_fingerprint_does_not_depend_on_the_folder(checkpoint: Path, folder: Path) -> None:
    ours, copy = CheckpointFiles.open(checkpoint), CheckpointFiles.open(folder)
    assert ours.fingerprint(contents=True) == copy.fingerprint(contents=True)


def test_no_folder(tmp_path: Path) -> None:
    assert "nowhere does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "no folder" in refusal(tmp_path / "file")


def test_no_weights(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert INDEX_NAME in message
    assert SINGLE_NAME in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "cannot be read"),
        (b"\xff\xfe\xfd", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "no `weight_map`"),
        (b"{}", "no `weight_map`"),
        (b'{"weight_map": {}}', "no `weight_map`"),
        (b'{"weight_map": ["a"]}', "no `weight_map`"),
    ],
)
def test_damaged_index(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / INDEX_NAME).write_bytes(content)
    message = refusal(tmp_path)
    assert INDEX_NAME in message
    assert expected in message


@pytest.mark.parametrize("shard", ["../x.safetensors", "/x.safetensors", "a/../../x", "", 7, None])
def test_index_points_outside_the_folder(folder: Path, shard: object) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"lm_head.weight": shard}))
    message = refusal(folder)
    assert "1 problem:" in message
    assert f"lm_head.weight points outside the folder: {shard!r}" in message


def test_only_entry_points_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text('{"weight_map": {"a": "../a.safetensors"}}')
    assert "1 problem:" in refusal(tmp_path)


@pytest.mark.parametrize("shard", ["x" * 5000, "a\0b"])
def test_index_names_a_shard_that_no_file_system_takes(folder: Path, shard: str) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"lm_head.weight": shard}))
    assert "is missing (3 of 4 are there)" in refusal(folder)


def test_missing_shard_says_how_many_are_there(folder: Path) -> None:
    (folder / SECOND).unlink()
    message = refusal(folder)
    assert f"shard {SECOND} is missing (2 of 3 are there)" in message
    assert "1 problem:" in message


def test_dangling_link_is_a_missing_shard(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).symlink_to(folder / "gone")
    assert f"shard {SECOND} is missing" in refusal(folder)


@pytest.mark.parametrize("removed", [1, 1000, 200_000])
def test_truncated_shard_names_wanted_and_got_bytes(folder: Path, removed: int) -> None:
    raw = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(raw[:-removed])
    message = refusal(folder)
    assert f"shard {SECOND} is truncated: {len(raw)} bytes wanted" in message
    assert f"{len(raw) - removed} there" in message


@pytest.mark.parametrize("size", [0, 7])
def test_shard_shorter_than_its_header_length(folder: Path, size: int) -> None:
    (folder / SECOND).write_bytes(b"\1" * size)
    assert f"shard {SECOND}: is truncated: {size} bytes" in refusal(folder)


def test_shard_truncated_inside_its_header(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:100])
    message = refusal(folder)
    assert "truncated inside its header: 2832 bytes wanted, 100 there" in message


def test_absurd_header_length(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"\xff" * 64)
    assert f"header length {2**64 - 1} is absurd" in refusal(folder)


def test_lfs_pointer(folder: Path) -> None:
    (folder / SECOND).write_text("version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n")
    assert f"shard {SECOND}: is a Git LFS pointer" in refusal(folder)


def test_trailing_bytes(folder: Path) -> None:
    raw = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(raw + b"x")
    assert f"has {len(raw) + 1} bytes, its header accounts for {len(raw)}" in refusal(folder)


def test_indexed_tensor_is_not_in_its_shard(folder: Path) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"lm_head.weight": SECOND}))
    assert f"tensor lm_head.weight is not in shard {SECOND}" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pack(b"not json"), "header is unreadable"),
        (pack(b""), "header is unreadable"),
        (pack([]), "must be a JSON object"),
        (pack({"a": 1}), "header entry a is no object"),
        (pack({"a": {}}), "unknown dtype None"),
        (
            pack({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
            "unknown dtype 'F4'",
        ),
        (pack({"a": {"dtype": "F32", "shape": [1]}}), "data_offsets None"),
        (
            pack({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234"),
            "shape [True]",
        ),
        (
            pack({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
            "shape [-1]",
        ),
        (
            pack({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
            "a is F32 [2], 8 bytes",
        ),
        (
            pack({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"),
            "a begins at byte 4, the tensor before it ends at 0",
        ),
        (
            pack(
                {
                    "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                    "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
                },
                b"123456",
            ),
            "b begins at byte 2, the tensor before it ends at 4",
        ),
    ],
)
def test_damaged_header(tmp_path: Path, content: bytes, expected: str) -> None:
    message = refusal(single(tmp_path, content))
    assert f"shard {SINGLE_NAME}: " in message
    assert expected in message


def test_all_problems_come_at_once(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-1])
    (folder / LAST).write_bytes(b"")
    edit_index(folder, lambda index: index["weight_map"].update({"lm_head.weight": "/x"}))
    message = refusal(folder)
    assert "4 problems:" in message
    for part in ("/x", f"{FIRST} is missing", f"{SECOND} is truncated", f"{LAST}: is truncated"):
        assert part in message


def test_more_than_ten_problems_are_counted(folder: Path) -> None:
    extra = {f"new.{i}": FIRST for i in range(25)}
    edit_index(folder, lambda index: index["weight_map"].update(extra))
    lines = refusal(folder).splitlines()
    assert "25 problems:" in lines[0]
    assert len(lines) == 12
    assert lines[-1].strip() == "and 15 more"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bytes, and any valid file with some bytes changed, open or raise CheckpointError."""
    header = {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    content = bytearray(pack(header, b"123"))
    if data.draw(st.booleans()):
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
            content[at] = data.draw(st.integers(0, 255))
    else:
        content = bytearray(data.draw(st.binary(max_size=64)))
    folder = single(tmp_path_factory.mktemp("fuzz"), bytes(content))
    try:
        files = CheckpointFiles.open(folder)
    except CheckpointError:
        return
    assert sum(files.shard_bytes.values()) == len(content)
